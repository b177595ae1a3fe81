"""Writes new keys and values into the paged cache."""

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype


def store_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Scatter `key` and `value` into the cache, in place.

    key, value: [num_tokens, num_kv_heads, head_dim]; caches: [num_blocks, block_size, num_kv_heads, head_dim],
    contiguous; slot_mapping: [num_tokens] int64, `block * block_size + offset`, in range and free of repeats: the
    caller checked that, the op does not.
    """
    require(key.shape == value.shape, "store_kv: key and value differ in shape")
    require(
        key_cache.shape == value_cache.shape and key_cache.shape[2:] == key.shape[1:],
        f"store_kv: key {tuple(key.shape)} against cache {tuple(key_cache.shape)}",
    )
    require(key_cache.is_contiguous() and value_cache.is_contiguous(), "store_kv: caches must be contiguous")
    require(
        slot_mapping.shape == key.shape[:1] and slot_mapping.dtype == torch.int64,
        "store_kv: slot_mapping must be int64, one per token",
    )
    require_same_dtype("store_kv", key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    reference.store_kv(key, value, key_cache, value_cache, slot_mapping)
