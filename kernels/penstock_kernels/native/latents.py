"""Norm, rotation and the write of latents in C: otherwise a dozen small ops of PyTorch in a decode step."""

import ctypes
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`Latents` of src/latents.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "down", "weight", "cos", "sin")),
        *((name, ctypes.c_void_p) for name in ("cache", "cache_positions")),
        *((name, ctypes.c_int64) for name in ("num_tokens", "num_cache_positions")),
        *((name, ctypes.c_int64) for name in ("token_stride", "head_stride", "down_stride")),
        *((name, ctypes.c_int32) for name in ("num_heads", "head_dim", "rank", "rope_dim")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
        ("eps", ctypes.c_float),
    )


@cache
def can_store(rank: int, rope_dim: int) -> bool:
    """Whether it is compiled, for latents of so many numbers."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_store_latents(rank, rope_dim))


def supports(query: torch.Tensor, down: torch.Tensor, norm: tuple[torch.Tensor, float], *_: object) -> bool:
    """Whether `rotate_and_store_latents` can take these, as the op has checked them."""
    return query.dtype in DTYPES and can_store(len(norm[0]), down.shape[1] - len(norm[0]))


def rotate_and_store_latents(
    query: torch.Tensor,
    down: torch.Tensor,
    norm: tuple[torch.Tensor, float],
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
    cache: torch.Tensor,
    cache_positions: torch.Tensor,
    max_lanes: int = 0,
) -> None:
    """The op in C. A token's bits do not depend on the other tokens. `max_lanes`: see `paged_attention`."""
    num_cache_positions = cache.shape[0] * cache.shape[1]
    call = _Call(
        query.data_ptr(),
        down.data_ptr(),
        norm[0].data_ptr(),
        None if cos is None else cos.data_ptr(),
        None if sin is None else sin.data_ptr(),
        cache.data_ptr(),
        cache_positions.data_ptr(),
        len(query),
        num_cache_positions,
        *query.stride()[:2],
        down.stride(0),
        *query.shape[1:],
        len(norm[0]),
        down.shape[1] - len(norm[0]),
        DTYPES[query.dtype],
        torch.get_num_threads() if query.numel() >= WORTH_THREADS else 1,
        max_lanes,
        norm[1],
    )
    kept = (query, down, norm, cos, sin, cache, cache_positions)
    run("penstock_store_latents", call, *kept, failure=lambda: _beyond(cache_positions, num_cache_positions))


def _beyond(cache_positions: torch.Tensor, num_cache_positions: int) -> IndexError:
    token = int(((cache_positions < 0) | (cache_positions >= num_cache_positions)).nonzero()[0])
    found = int(cache_positions[token])
    return IndexError(
        f"rotate_and_store_latents: cache position {found} of token {token} is not in the cache"
    )
