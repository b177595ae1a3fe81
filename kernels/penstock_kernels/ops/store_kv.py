"""Writes into the paged cache: new keys and values, and copies of whole blocks."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.destination import FP8, Destination


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    cache_positions: torch.Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Scatter `key` and `value` into the cache, in place.

    key, value: [num_tokens, num_kv_heads, head_dim]; caches: [num_blocks, block_size, num_kv_heads, head_dim],
    contiguous; cache_positions: [num_tokens] int64, `block * block_size + offset`, in range and free of repeats: the
    caller checked that, the op does not. The cache may be float8_e4m3fn: then what is stored is the number divided by
    its scale, and a number that is too large becomes the largest.
    """
    require(key.shape == value.shape, "store_kv: key and value differ in shape")
    require(key.stride(2) == 1 and value.stride(2) == 1, "store_kv: the numbers of a head must be contiguous")
    destination = Destination(key_cache, value_cache, cache_positions, key_scale, value_scale)
    check_destination("store_kv", destination, tuple(key.shape), key.dtype)
    require_same_dtype("store_kv", key=key, value=value)
    table.store_kv(key, value, destination)


def check_destination(op: str, target: Destination, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError unless keys of this shape and dtype can be stored there."""
    key_cache, value_cache, cache_positions = target[:3]
    require(
        key_cache.dim() == 4
        and key_cache.shape == value_cache.shape
        and tuple(key_cache.shape[2:]) == shape[1:],
        lambda: f"{op}: key {shape} against cache {tuple(key_cache.shape)}",
    )
    require(
        key_cache.is_contiguous() and value_cache.is_contiguous(), lambda: f"{op}: caches must be contiguous"
    )
    require(
        cache_positions.shape == shape[:1]
        and cache_positions.dtype == torch.int64
        and cache_positions.is_contiguous(),
        lambda: f"{op}: cache_positions must be int64, one per token",
    )
    require_same_dtype(op, key_cache=key_cache, value_cache=value_cache)
    require(key_cache.dtype in (dtype, FP8), lambda: f"{op}: {dtype} into a cache of {key_cache.dtype}")


def copy_blocks(pool: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy whole blocks of all layers, in place.

    pool: [num_layers, 1 or 2, num_blocks, block_size, num_kv_heads, head_dim] contiguous; sources, targets:
    [num_copies] integers. Targets are distinct and no block is both source and target: the caller checked that, the op
    does not.
    """
    require(
        pool.dim() == 6 and pool.is_contiguous(),
        "copy_blocks: the pool must have 6 dimensions and be contiguous",
    )
    require(
        sources.dim() == 1 and sources.shape == targets.shape and sources.dtype == targets.dtype,
        lambda: f"copy_blocks: {tuple(sources.shape)} sources for {tuple(targets.shape)} targets",
    )
    if sources.numel() == 0:
        return
    table.copy_blocks(pool, sources, targets)
