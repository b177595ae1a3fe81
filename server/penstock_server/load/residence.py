"""Keeps in memory all that a shard serves with, or less while it sleeps.

While it sleeps it has no engine: no cache, no rows, no graphs and no adapters. At level 1 it keeps its weights; on a
GPU they are moved to the memory of the host. At level 2 the weights are dropped. They are read again when it wakes up,
from the same folder or from another one that takes its place.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.config import QuantizeCache, ServerConfig
from penstock_server.base.errors import (
    PenstockError,
    ShardAsleep,
    ShardFailed,
    StartError,
    WeightsKept,
    WeightsRefused,
)
from penstock_server.base.log import stage
from penstock_server.engine.adapters import Adapters
from penstock_server.engine.description import Description
from penstock_server.engine.engine import Engine
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.folders import Folders, open_folders
from penstock_server.files.same_model import check_same, replaceable
from penstock_server.files.versions import Versions, read_versions
from penstock_server.load.allocation import allocating
from penstock_server.load.awake_memory import AwakeBytes, AwakeMemory
from penstock_server.load.free_memory import free_memory
from penstock_server.load.load_engine import Lasting, Prepared, load, prepare
from penstock_server.load.loaded import Loaded
from penstock_server.load.receiving import Receiving
from penstock_server.network.parked import Parked

logger = logging.getLogger(__name__)

# Makes of an engine the object whose steps are computed.
Wrap = Callable[[Engine], Engine]


class SleepLevel(IntEnum):
    """How deep a shard sleeps."""

    AWAKE = 0
    WEIGHTS_KEPT = 1
    WEIGHTS_DROPPED = 2


class Source(NamedTuple):
    """Where weights are read from."""

    config: ServerConfig
    # The versions that the files must have; None: any.
    versions: Versions | None
    # The router's name for these weights; empty for those of the start.
    label: str


class Replaced(NamedTuple):
    """The engine after an attempt to replace the weights, and the reason if the weights are still the old ones."""

    engine: Engine
    refusal: WeightsKept | None


class Residence:
    """The memory of one process. All methods but `check` are for the thread that loads and steps."""

    def __init__(self, config: ServerConfig, folders: Folders, wrap: Wrap) -> None:
        """Load the model; raises as `prepare` does."""
        self.level = SleepLevel.AWAKE
        self._config = config
        self._wrap = wrap
        # The weights that others are compared with.
        self._folder = folders.model
        self.receiving = Receiving(folders.model.path, self._replaceable)
        prepared = prepare(config, *folders)
        loaded = prepared.loaded
        self._lasting = Lasting(loaded.ranks, loaded.grammars)
        self._sizes = prepared.limits, prepared.graph_sizes
        self.description: Description = loaded.describe(prepared.limits)
        self._source = Source(config, loaded.versions, "")
        # None where weights are dropped.
        self._prepared: Prepared | None = prepared
        self._parked: Parked | None = _parked(loaded)
        self._memory = AwakeMemory(loaded)
        self._engine: Engine | None = wrap(prepared.engine())
        # The memory that it takes to wake up, as last measured.
        self.awake_bytes: AwakeBytes = self._memory.measure(self._engine)

    @property
    def engine(self) -> Engine | None:
        """The engine; None while the shard sleeps."""
        return self._engine

    @property
    def adapters(self) -> Adapters:
        """The adapters of the model; raises ShardAsleep if the shard has no engine."""
        if self.level is not SleepLevel.AWAKE or self._prepared is None:
            raise ShardAsleep("the shard sleeps, and has no adapters")
        return self._prepared.loaded.adapters

    def sleep(self, level: SleepLevel) -> None:
        """Go to this level, or stay at a deeper one."""
        if level <= self.level:
            return
        with stage(logger, f"sleep at level {level.value}"):
            # Cycles of objects that were there when the shard became ready are collected, too.
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
        # First: what interrupted sequences hold is not needed to wake up.
        engine.clear()
        self.awake_bytes = self._memory.measure(engine)
        engine.slots.adapters.forget()
        engine.destroy_graphs()
        self._engine = None
        self._lasting.ranks.everyone.begin_loading()

    def close(self) -> None:
        """Leave the group. Graphs go first: the group cannot end while they hold its communicator."""
        if self._engine is not None:
            self._engine.destroy_graphs()
        self._lasting.ranks.everyone.leave()

    def wake_up(self) -> Engine:
        """A new engine, like the one of the start. Raises ShardAsleep if there cannot be one: the shard sleeps on."""
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
            self._read(self._source)
        elif self._parked is not None:
            allocating("the weights", self._parked.come_back)
        assert self._prepared is not None, "it was read"
        return self._wrap(self._prepared.engine())

    def _read(self, source: Source) -> None:
        """The weights of this rank; raises StartError if they cannot be read, or are not those that they should be."""
        folders = self._compared(source.config) if source.label else open_folders(source.config)
        loaded = load(source.config, *folders, self._lasting)
        if source.versions not in (None, loaded.versions):
            again = "update the weights again" if source.label else "start the server again"
            raise StartError(f"the files of the model are others than those that were loaded; {again}")
        self._prepared = Prepared(loaded, *self._sizes)
        self._parked = _parked(loaded)

    @property
    def label(self) -> str:
        """The router's name for the weights in use."""
        return self._source.label

    def check(self, path: Path) -> Versions:
        """The versions of a folder whose weights may replace those in use; raises WeightsRefused. For any thread."""
        try:
            folders = self._compared(self._config_of(path))
            return read_versions(folders.model, self._config.tokenizer_path)
        except (StartError, OSError) as error:
            raise WeightsRefused(str(error)) from None

    def _replaceable(self) -> Checkpoint:
        """The tensors of the model; raises StartError where none can take their place."""
        if self._folder.spec is None and self._config.group.world_size > 1:
            raise StartError("weights of a model of transformers on several shards cannot be replaced")
        return replaceable(self._folder)

    def _compared(self, config: ServerConfig) -> Folders:
        self._replaceable()
        folders = open_folders(config)
        check_same(self._folder, folders.model)
        return folders

    def _config_of(self, path: Path | None) -> ServerConfig:
        """None: that of the start."""
        if path is None:
            return self._config
        # Weights quantized at load are kept for later starts, and those do not begin with this folder.
        return replace(self._config, model_path=path, quantize_cache=QuantizeCache())

    def replace(self, path: Path | None, version: str, label: str) -> Replaced:
        """Replace the weights in use by those of a folder, on all ranks or on none.

        `path`: None for the folder of the start. `version`: what its files must be, if it is not empty.
        Raises ShardFailed if not even the old weights can be read again.
        """
        before = self._source
        versions: Versions | None = self.description.versions
        if path is not None:
            versions = self.description.versions._replace(weights=version) if version else None
        self.sleep(SleepLevel.WEIGHTS_DROPPED)
        with stage(logger, "other weights"):
            refusal = self._read_together(Source(self._config_of(path), versions, label))
            if refusal is not None:
                logger.error("the weights stay as they were: %s", refusal)
                lost = self._read_together(before)
                if lost is not None:
                    raise ShardFailed(f"{refusal}; nor can those from before be read: {lost}")
            return Replaced(self.wake_up(), refusal)

    def _read_together(self, source: Source) -> WeightsKept | None:
        """Read the weights on all ranks. If one rank cannot, say why, and let none keep what it has read."""
        refusal = None
        try:
            self._read(source)
        except StartError as error:
            refusal = WeightsKept(str(error))
        everyone = self._lasting.ranks.everyone.gather_numbers(int(refusal is None))
        if all(is_read for (is_read,) in everyone):
            self._source = source
            return None
        self._prepared = self._parked = None
        free_memory()
        return refusal or WeightsKept("another rank cannot read them")

    def _fall_asleep_again(self, error: StartError) -> PenstockError:
        """The error to raise."""
        if self._lasting.ranks.everyone.size > 1:
            # Others may wait for this rank, and learn of its end at once.
            return ShardFailed(f"the shard cannot wake up: {error}")
        level, self.level = self.level, SleepLevel.AWAKE
        self.sleep(level)
        return ShardAsleep(f"the shard cannot wake up: {error}")


def _parked(loaded: Loaded) -> Parked | None:
    """Moves weights to the memory of the host; None on a CPU, where they are there already."""
    return None if loaded.device.type == "cpu" else Parked(loaded.device, loaded.model, loaded.draft)
