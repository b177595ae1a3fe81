"""Changes of what a shard has in memory: made between two steps, and described from then on."""

import threading
from collections.abc import Callable

from penstock_server.base.errors import CallRefused
from penstock_server.engine.engine import Engine
from penstock_server.load.residence import Residence, SleepLevel
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.step_loop import Change, StepLoop

_LEVELS = (SleepLevel.WEIGHTS_KEPT, SleepLevel.WEIGHTS_DROPPED)


class Changes:
    """Of one shard. Its methods may be called from any thread, once there is a loop, and wait for the change."""

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

    def _make(self, change: Change) -> None:
        assert self._loop is not None, "calls come when the process serves"
        self._loop.change(lambda: self._made(change)).result()

    def _made(self, change: Change) -> Engine | None:
        """Described before the next stream can be opened."""
        assert self._describe is not None
        engine = change()
        self._described.sleep_level = self._residence.level.value
        self._describe(self._described)
        return engine
