"""The paged pools of keys and values, or of latents: one tensor for all layers whose heads are alike, so that copying a
block is one call."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from penstock_kernels import (
    Attend,
    AttendLatents,
    DecodeSpans,
    copy_blocks,
    own_attention,
    own_latent_attention,
)

from penstock_server.architectures.spec import CacheShape
from penstock_server.network.states import AnyStates
from penstock_server.network.upload import to_device

# NaN in every type that a cache may have, byte after byte.
_NAN_BYTE = 0xFF


class KvScale(NamedTuple):
    """The divisors of one layer's keys and values, which were divided before they were stored in 8 bits."""

    key: float = 1.0
    value: float = 1.0


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """The type and scales of keys and values, and the functions that attend to them, or to latents."""

    dtype: torch.dtype
    # One for each layer; empty where nothing is divided.
    scales: tuple[KvScale, ...] = ()
    attend: Attend = own_attention
    attend_latents: AttendLatents = own_latent_attention


class LayerCache(NamedTuple):
    """One layer's blocks: [num_blocks, block_size, num_kv_heads, head_dim] each. Latents are both key and value."""

    key: torch.Tensor
    value: torch.Tensor
    scale: KvScale
    attend: Attend
    attend_latents: AttendLatents
    # The keys of an index of latents: [num_blocks, block_size, 1, index_dim].
    index_key: torch.Tensor | None = None
    # The choices of the indexes of the layers before in this pass, by layer.
    chosen: dict[int, DecodeSpans | None] | None = None


class KVCache:
    """Blocks by number, and states by slot. The memory is not initialised: no op reads what was not written.

    Tests check that with a poisoned cache, in which every position that a sequence has not written is NaN.
    """

    def __init__(
        self, shape: CacheShape, num_blocks: int, block_size: int, cache_format: CacheFormat,
        device: torch.device, is_poisoned: bool = False, states: AnyStates | None = None,
    ) -> None:  # fmt: skip
        # The states of the layers that keep no keys and values, or more than these.
        self.states = states
        self.device = device
        # Blocks that sequences may have; behind them is one for what the spare row writes.
        self.num_blocks = num_blocks - 1
        pools = {
            heads: torch.empty(
                (shape.heads.count(heads), shape.num_tensors, num_blocks, block_size, *heads),
                dtype=cache_format.dtype,
                device=device,
            )
            for heads in dict.fromkeys(shape.heads)
        }
        self.pools = list(pools.values())
        self.is_poisoned = is_poisoned
        if is_poisoned:
            self.spoil()
        scales = cache_format.scales or (KvScale(),) * shape.num_layers
        attends = cache_format.attend, cache_format.attend_latents
        parts = {heads: iter(pool) for heads, pool in pools.items()}
        layers = (next(parts[heads]) for heads in shape.heads)
        self.layers = [
            LayerCache(layer[0], layer[-1], scale, *attends)
            for layer, scale in zip(layers, scales, strict=True)
        ]

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole blocks of all layers; sources are read before any target is written."""
        if not sources:
            return
        index = to_device([sources, targets], torch.int64, self.device)
        for pool in self.pools:
            copy_blocks(pool, index[0], index[1])

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy flat positions of all layers; sources are read before any target is written."""
        for pool in self.pools:
            flat = pool.view(torch.uint8).flatten(2, 3)
            flat.index_copy_(2, targets, flat.index_select(2, sources))

    @property
    def fresh_pools(self) -> list[torch.Tensor]:
        """The pools on the host, unless all of their memory was written already."""
        return [] if self.is_poisoned or self.device.type != "cpu" else self.pools

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers of this rank, without states."""
        return sum(_block_bytes_in(pool) for pool in self.pools)

    def read_blocks(self, blocks: list[int]) -> memoryview:
        """The bytes of whole blocks: of each pool, all of the first tensor of the first layer, then of the next."""
        read = [_rows(pool).index_select(0, _rows_of(pool, blocks)).cpu() for pool in self.pools]
        parts = [part.view(torch.uint8).flatten() for part in read]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).numpy().data

    def write_blocks(self, blocks: list[int], data: torch.Tensor) -> None:
        """Take over what `read_blocks` of a cache of this format gave for as many; `data`: [num_bytes] on the host."""
        sizes = [len(blocks) * _block_bytes_in(pool) for pool in self.pools]
        for pool, part in zip(self.pools, torch.split(data, sizes), strict=True):
            rows = _rows(pool)
            given = part.view(rows.dtype).view(-1, rows.shape[1])
            rows.index_copy_(0, _rows_of(pool, blocks), given.to(rows.device))

    def spoil(self) -> None:
        """Make all of it NaN."""
        if self.states is not None:
            self.states.spoil()
        for pool in self.pools:
            pool.view(torch.uint8).fill_(_NAN_BYTE)

    def poison(self, positions: torch.Tensor) -> None:
        """Make flat positions (block * block_size + offset) NaN in all layers."""
        self._fill(positions, _NAN_BYTE)

    def blank(self, positions: torch.Tensor) -> None:
        """Make flat positions zero in all layers."""
        self._fill(positions, 0)

    def _fill(self, positions: torch.Tensor, byte: int) -> None:
        for pool in self.pools:
            pool.view(torch.uint8).flatten(2, 3).index_fill_(2, positions, byte)


def block_bytes(shape: CacheShape, block_size: int, dtype: torch.dtype) -> int:
    """Bytes of one block over all layers on this rank."""
    return block_size * (shape.position_size * dtype.itemsize + shape.kept_bytes)


def _block_bytes_in(pool: torch.Tensor) -> int:
    return pool[:, :, 0].numel() * pool.itemsize


def _rows(pool: torch.Tensor) -> torch.Tensor:
    """[num_layers * num_tensors * all blocks, words]: words of 8 bytes are copied much faster than bytes."""
    rows = pool.view(-1, pool[0, 0, 0].numel())
    is_even = rows.shape[1] * rows.itemsize % torch.int64.itemsize == 0
    return rows.view(torch.int64 if is_even else torch.uint8)


def _rows_of(pool: torch.Tensor, blocks: list[int]) -> torch.Tensor:
    index = to_device([blocks], torch.int64, pool.device)
    first = torch.arange(pool.shape[0] * pool.shape[1], device=pool.device)
    return (first[:, None] * pool.shape[2] + index).flatten()
