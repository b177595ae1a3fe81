"""Writes into the paged cache: new keys and values, and copies of whole blocks."""

import torch

from penstock_kernels.base.destination import Destination
from penstock_kernels.base.wide_type import wide_type


def store_kv(key: torch.Tensor, value: torch.Tensor, target: Destination) -> None:
    for rows, cache, scale in (
        (key, target.key_cache, target.key_scale),
        (value, target.value_cache, target.value_scale),
    ):
        flat = cache.flatten(0, 1)
        if cache.dtype == rows.dtype:
            flat.index_copy_(0, target.cache_positions, rows)
        else:
            flat.view(torch.uint8).index_copy_(0, target.cache_positions, _narrow(rows, scale, cache.dtype))


def _narrow(rows: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """The bits of numbers in 8 bits. A larger number than the largest becomes that: a plain conversion makes it NaN."""
    largest, wide = torch.finfo(dtype).max, wide_type(rows.dtype)
    return (rows.to(wide) / scale).clamp(-largest, largest).to(dtype).view(torch.uint8)


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    bits = pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool
    bits[:, :, targets.long()] = bits[:, :, sources.long()]
