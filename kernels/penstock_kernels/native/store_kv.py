"""The write of keys and values to the cache in C, where nothing is rotated on the way: copies of bytes."""

import ctypes

import torch

from penstock_kernels.base.destination import Destination
from penstock_kernels.native.library import library, run
from penstock_kernels.native.rotary import beyond


class _Call(ctypes.Structure):
    """`Store` of src/store_kv.c, field by field."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("key", "value", "key_cache", "value_cache", "cache_positions")
        ),
        *(
            (name, ctypes.c_int64)
            for name in ("num_tokens", "num_cache_positions", "num_kv_heads", "head_bytes")
        ),
        *(
            (f"{name}_{inner}_stride", ctypes.c_int64)
            for name in ("key", "value")
            for inner in ("token", "head")
        ),
    )


def supports(key: torch.Tensor, value: torch.Tensor, target: Destination) -> bool:
    """Whether `store_kv` can take these, as the op has checked them: it converts nothing."""
    return target.key_cache.dtype == key.dtype and library() is not None


def store_kv(key: torch.Tensor, value: torch.Tensor, target: Destination) -> None:
    """The op in C."""
    num_blocks, block_size, num_kv_heads, dim = target.key_cache.shape
    size, num_positions = key.itemsize, num_blocks * block_size
    call = _Call(
        key.data_ptr(),
        value.data_ptr(),
        target.key_cache.data_ptr(),
        target.value_cache.data_ptr(),
        target.cache_positions.data_ptr(),
        len(key),
        num_positions,
        num_kv_heads,
        dim * size,
        *(stride * size for rows in (key, value) for stride in rows.stride()[:2]),
    )
    positions = target.cache_positions
    run(
        "penstock_store_kv",
        call,
        key,
        value,
        target,
        failure=lambda: beyond("store_kv", positions, num_positions),
    )
