"""What a shard has in memory through its life: all that it serves with, or less while it sleeps.

Asleep it has no engine: no cache, rows and graphs, and no adapters. At level 1 it keeps its weights; on a GPU they wait
in the memory of the host. At level 2 they are dropped, and read from the files again.
"""

import gc
import logging
from collections.abc import Callable
from enum import IntEnum

from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import PenstockError, ShardAsleep, ShardFailed, StartError
from penstock_server.base.log import stage
from penstock_server.engine.adapters import Adapters
from penstock_server.engine.engine import Description, Engine
from penstock_server.files.folders import Folders, open_folders
from penstock_server.load.allocation import allocating
from penstock_server.load.free_memory import free_memory
from penstock_server.load.load_engine import Lasting, Prepared, load, prepare
from penstock_server.load.loaded import Loaded
from penstock_server.network.parked import Parked

logger = logging.getLogger(__name__)

# Makes what is stepped of an engine.
Wrap = Callable[[Engine], Engine]


class SleepLevel(IntEnum):
    """How deep a shard sleeps."""

    AWAKE = 0
    WEIGHTS_KEPT = 1
    WEIGHTS_DROPPED = 2


class Residence:
    """Of one process. Its methods are for the thread that loads and steps."""

    def __init__(self, config: ServerConfig, folders: Folders, wrap: Wrap) -> None:
        """Load the model; raises as `prepare` does."""
        self.level = SleepLevel.AWAKE
        self._config = config
        self._wrap = wrap
        prepared = prepare(config, *folders)
        loaded = prepared.loaded
        self._lasting = Lasting(loaded.group, loaded.grammars)
        self._sizes = prepared.limits, prepared.graph_sizes
        self.description: Description = loaded.describe(prepared.limits)
        # None where weights are dropped.
        self._prepared: Prepared | None = prepared
        self._parked: Parked | None = _parked(loaded)
        self._engine: Engine | None = wrap(prepared.engine())

    @property
    def engine(self) -> Engine | None:
        """What is stepped; None while the shard sleeps."""
        return self._engine

    @property
    def adapters(self) -> Adapters:
        """Those of the model; raises ShardAsleep where there is none."""
        if self.level is not SleepLevel.AWAKE or self._prepared is None:
            raise ShardAsleep("the shard sleeps, and has no adapters")
        return self._prepared.loaded.adapters

    def sleep(self, level: SleepLevel) -> None:
        """Go to this level, or stay at a deeper one."""
        if level <= self.level:
            return
        with stage(logger, f"sleep at level {level.value}"):
            # Cycles of what was there when the shard became ready are collected, too.
            gc.unfreeze()
            if self._engine is not None:
                self._leave_engine(self._engine)
            if level is SleepLevel.WEIGHTS_DROPPED:
                self._prepared = self._parked = None
            elif self._parked is not None:
                self._parked.leave()
            self.level = level
            free_memory()

    def _leave_engine(self, engine: Engine) -> None:
        engine.clear()
        engine.slots.adapters.forget()
        engine.destroy_graphs()
        self._engine = None
        self._lasting.group.begin_loading()

    def close(self) -> None:
        """Leave the group. Graphs go first: the group cannot end while they hold its communicator."""
        if self._engine is not None:
            self._engine.destroy_graphs()
        self._lasting.group.leave()

    def wake_up(self) -> Engine:
        """The engine, as it was when it was new. Raises ShardAsleep where there cannot be one: it sleeps on."""
        if self._engine is not None:
            return self._engine
        with stage(logger, "wake-up"):
            try:
                engine = self._awakened()
            except StartError as error:
                raise self._fall_asleep_again(error) from None
        self._engine, self.level = engine, SleepLevel.AWAKE
        gc.freeze()
        return engine

    def _awakened(self) -> Engine:
        if self._prepared is None:
            self._prepared = self._prepare_again(open_folders(self._config))
            self._parked = _parked(self._prepared.loaded)
        elif self._parked is not None:
            allocating("the weights", self._parked.come_back)
        return self._wrap(self._prepared.engine())

    def _prepare_again(self, folders: Folders) -> Prepared:
        loaded = load(self._config, *folders, self._lasting)
        if loaded.versions != self.description.versions:
            raise StartError(
                "the files of the model are others than those that were loaded; start the server again"
            )
        return Prepared(loaded, *self._sizes)

    def _fall_asleep_again(self, error: StartError) -> PenstockError:
        """What to raise."""
        if self._lasting.group.size > 1:
            # Others may wait for this rank, and learn of its end at once.
            return ShardFailed(f"the shard cannot wake up: {error}")
        level, self.level = self.level, SleepLevel.AWAKE
        self.sleep(level)
        return ShardAsleep(f"the shard cannot wake up: {error}")


def _parked(loaded: Loaded) -> Parked | None:
    """What takes weights to the memory of the host; None on a CPU, where they are in it."""
    return None if loaded.device.type == "cpu" else Parked(loaded.device, loaded.model, loaded.draft)
