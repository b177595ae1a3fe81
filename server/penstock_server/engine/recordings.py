"""Records a computation that a CPU repeats with other numbers when it first occurs; each repetition is one call.

A computation reads what the host wrote into memory that stays, and leaves its results in such memory.
"""

import logging
from collections.abc import Callable, Hashable

import torch
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.native.library import library
from penstock_kernels.native.recording import Arena, NotRecordable, record

from penstock_server.engine.graph_pool import Replay

logger = logging.getLogger(__name__)

# Computes for no slot what steps will compute, and so records it.
Ahead = Callable[[], object]


def can_record(device: torch.device) -> bool:
    """Whether computations on this device are recorded: ops in C choose the tokens in them."""
    return device.type == "cpu" and not runs_kernels(device) and library() is not None


class Recordings:
    """The recordings of several computations, which share the memory of their intermediate results."""

    def __init__(self, name: str) -> None:
        """`name`: what they are, for the log."""
        self._name = name
        self._arena = Arena()
        self._replays: dict[Hashable, Replay] = {}
        self._is_possible = True

    @property
    def is_possible(self) -> bool:
        """Whether none was refused yet."""
        return self._is_possible

    def clear(self) -> None:
        """Forget all of them."""
        self._replays.clear()

    def run(self, key: Hashable, compute: Replay) -> None:
        """Compute, or what was computed by this key once more."""
        replay = self._replays.get(key)
        if replay is None:
            self._replays[key] = self._first(compute)
        else:
            replay()

    def _first(self, compute: Replay) -> Replay:
        if self._is_possible:
            try:
                return record(compute, self._arena).replay
            except NotRecordable as reason:
                logger.info("%s are not recorded: %s", self._name, reason)
                self._is_possible = False
        compute()
        return compute
