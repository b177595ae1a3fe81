"""Changes of what a shard has in memory: made between two steps, and described from then on."""

import threading
from collections.abc import Callable
from pathlib import Path

from penstock_server.base.errors import CallRefused, WeightsKept
from penstock_server.engine.engine import Engine
from penstock_server.load.residence import Residence, SleepLevel
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import awake_bytes_to_pb
from penstock_server.rpc.step_loop import Change, StepLoop

_LEVELS = (SleepLevel.WEIGHTS_KEPT, SleepLevel.WEIGHTS_DROPPED)


class Changes:
    """Changes one shard. Its methods may be called from any thread, once there is a loop, and wait for the change."""

    def __init__(self, residence: Residence, described: pb.DescribeResponse) -> None:
        self._residence = residence
        self._described = described
        # One after the other: whether there is anything to change depends on the one before.
        self._lock = threading.Lock()
        self._loop: StepLoop | None = None
        self._describe: Callable[[pb.DescribeResponse], None] | None = None

    def begin(self, loop: StepLoop, describe: Callable[[pb.DescribeResponse], None]) -> None:
        """From now on calls may come."""
        self._loop, self._describe = loop, describe

    def sleep(self, level: int) -> None:
        """Give memory back; raises CallRefused for a level that is none."""
        if level not in _LEVELS:
            raise CallRefused(f"level {level}: there are {' and '.join(str(it.value) for it in _LEVELS)}")
        with self._lock:
            if self._residence.level < level:
                self._make(lambda: self._residence.sleep(SleepLevel(level)))

    def wake_up(self) -> None:
        """Compute again; raises ShardAsleep where that cannot be."""
        with self._lock:
            if self._residence.level is not SleepLevel.AWAKE:
                self._make(self._residence.wake_up)

    def replace_weights(self, path: Path | None, version: str, label: str) -> None:
        """Compute with the weights of another folder; raises WeightsKept where they cannot be read after all."""
        refusals: list[WeightsKept] = []

        def change() -> Engine:
            engine, refusal = self._residence.replace(path, version, label)
            refusals.extend([refusal] if refusal is not None else [])
            return engine

        with self._lock:
            self._make(change)
        if refusals:
            raise refusals[0]

    def _make(self, change: Change) -> None:
        assert self._loop is not None, "calls come when the process serves"
        self._loop.change(lambda: self._made(change)).result()

    def _made(self, change: Change) -> Engine | None:
        """Described before the next stream can be opened."""
        assert self._describe is not None
        engine = change()
        self._described.sleep_level = self._residence.level.value
        self._described.weights_label = self._residence.label
        self._described.awake_bytes.CopyFrom(awake_bytes_to_pb(self._residence.awake_bytes))
        self._describe(self._described)
        return engine
