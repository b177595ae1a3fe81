"""A tensor-parallel group in one process: a thread per rank, and collectives that add and join in the order of ranks.

Two ranks add the same two numbers as gloo does, so the results are those of processes, without their start.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Execute, engine_config
from penstock_server.base.config import GroupConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Plan
from penstock_server.files.model_folder import open_folder
from penstock_server.load.load_engine import load_engine
from penstock_server.network import distributed

_TIMEOUT_S = 60.0


class _Meeting:
    """Where the ranks of a group put what they bring, and all take what all brought."""

    def __init__(self, size: int) -> None:
        self.brought: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_TIMEOUT_S)

    def exchange(self, rank: int, mine: Any) -> list[Any]:
        self.brought[rank] = mine
        self.barrier.wait()
        everyone = list(self.brought)
        self.barrier.wait()
        return everyone


class _Dist:
    """The part of torch.distributed that a `Group` uses."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.meeting = meeting

    def all_reduce(self, x: torch.Tensor) -> None:
        parts = self.meeting.exchange(self.rank, x.clone())
        x.copy_(sum(parts[1:], parts[0]))

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor) -> None:
        for part, brought in zip(parts, self.meeting.exchange(self.rank, x.clone()), strict=True):
            part.copy_(brought)

    @property
    def distributed_c10d(self) -> "_Dist":
        return self

    def _set_pg_timeout(self, timeout: timedelta) -> None:
        """Threads wait as long as the barrier has it."""


@contextmanager
def engines(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Iterator[list[Engine]]:
    """The engines of all ranks."""
    meeting = _Meeting(size)
    monkeypatch.setattr(distributed, "_join", lambda config, _device: _Dist(config.rank, meeting))

    def load(rank: int) -> Engine:
        config = replace(engine_config(folder, **options), group=GroupConfig(rank, size, folder))
        return load_engine(config, open_folder(folder, config.load_format, config.model_impl))

    with ThreadPoolExecutor(size) as pool:
        yield list(pool.map(load, range(size)))


def execute_on_all(ranks: list[Engine]) -> Execute:
    """Runs a plan on every rank at a time, and compares what they say."""
    pool = ThreadPoolExecutor(len(ranks))

    def execute(plan: Plan) -> Any:
        first, *others = pool.map(lambda engine: engine.launch(plan).resolve(), ranks)
        for other in others:
            assert other.sampled_ids == first.sampled_ids
            assert other.sampled_logprobs == first.sampled_logprobs
            assert other.errors == first.errors
        return first

    return execute
