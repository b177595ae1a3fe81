"""How much memory a shard takes while it is awake, beyond what it has while it sleeps.

On a GPU that is all that the allocator of torch has taken from the device. On a CPU, where others allocate from the
same memory, it is the sum of all tensors that the engine reaches: a cache counts whole, although the system gives its
pages only as they are filled. Of the memory for recorded steps that part counts which they use.
"""

from typing import NamedTuple

import torch
from penstock_kernels.native.recording import Arena

from penstock_server.engine.engine import Engine
from penstock_server.load.loaded import Loaded
from penstock_server.network.parked import bytes_of, reached


class AwakeBytes(NamedTuple):
    """The bytes that sleep gives back: at level 1, and at level 2."""

    level_1: int
    level_2: int


class AwakeMemory:
    """Measures the memory of one shard, whose weights are loaded and which has no engine yet."""

    def __init__(self, loaded: Loaded) -> None:
        self._device = loaded.device
        # On a CPU they stay at level 1. Adapters, which hang on the same layers later, do not.
        self._weights = bytes_of((loaded.model, loaded.draft)) if self._device.type == "cpu" else 0

    def measure(self, engine: Engine) -> AwakeBytes:
        """With this engine."""
        if self._device.type == "cuda":
            reserved = torch.cuda.memory_reserved(self._device)
            return AwakeBytes(reserved, reserved)
        # The model is reached from the engine.
        everything = bytes_of(engine) - sum(arena.num_unused for arena in reached(engine, Arena))
        return AwakeBytes(max(everything - self._weights, 0), everything)
