"""The paged pool of keys and values: one tensor for all layers, so that copying a block is one call."""

import os
from dataclasses import dataclass
from typing import NamedTuple

import torch
from penstock_kernels import Attend, copy_blocks, own_attention

from penstock_server.models.spec import CacheShape
from penstock_server.upload import to_device

# On the CPU the pool competes with the weights and the user's other programs for the same memory.
CPU_BUDGET_BYTES = 4 * 1024**3
CPU_BUDGET_SHARE = 4
# NaN in every type that a cache may have, byte after byte.
_NAN_BYTE = 0xFF


class KvScale(NamedTuple):
    """What the numbers of one layer were divided by before they were stored in 8 bits."""

    key: float = 1.0
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """How keys and values are kept, and who attends to them."""

    dtype: torch.dtype
    # By layer; none where nothing is divided.
    scales: tuple[KvScale, ...] = ()
    attend: Attend = own_attention


class LayerCache(NamedTuple):
    """One layer's blocks: [num_blocks, block_size, num_kv_heads, head_dim] each."""

    key: torch.Tensor
    value: torch.Tensor
    scale: KvScale
    attend: Attend


class KVCache:
    """Blocks by number. Left as the allocator gives it: no op reads a position that was not written.

    A test holds that by a poisoned cache, in which all that was not written for whom it is read for is NaN.
    """

    def __init__(
        self, shape: CacheShape, num_blocks: int, block_size: int, form: CacheFormat,
        device: torch.device, is_poisoned: bool = False,
    ) -> None:  # fmt: skip
        sizes = (shape.num_layers, 2, num_blocks, block_size, shape.num_kv_heads, shape.head_dim)
        self.pool = torch.empty(sizes, dtype=form.dtype, device=device)
        self.is_poisoned = is_poisoned
        if is_poisoned:
            self.spoil()
        scales = form.scales or (KvScale(),) * shape.num_layers
        self.layers = [
            LayerCache(layer[0], layer[1], scale, form.attend)
            for layer, scale in zip(self.pool, scales, strict=True)
        ]

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole blocks of all layers; sources are read before any target is written."""
        if sources:
            index = to_device([sources, targets], torch.int64, self.pool.device)
            copy_blocks(self.pool, index[0], index[1])

    def spoil(self) -> None:
        """Make all of it NaN."""
        self.pool.view(torch.uint8).fill_(_NAN_BYTE)

    def poison(self, positions: torch.Tensor) -> None:
        """Make flat positions (block * block_size + offset) NaN in all layers."""
        self.pool.view(torch.uint8).flatten(2, 3).index_fill_(2, positions, _NAN_BYTE)


def block_bytes(shape: CacheShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers on this rank."""
    return shape.num_layers * 2 * block_size * shape.num_kv_heads * shape.head_dim * dtype.itemsize


def budget_bytes(world_size: int) -> int:
    """What the pool of this rank may take on a CPU by default."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(available, _reclaimable_bytes()) // CPU_BUDGET_SHARE, CPU_BUDGET_BYTES) // world_size


def _reclaimable_bytes() -> int:
    """MemAvailable: free memory and page cache; 0 where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
