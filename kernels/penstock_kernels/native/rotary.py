"""Norm, rotation and the write of the cache in C: otherwise a dozen small ops of PyTorch in a decode step."""

import ctypes
from functools import cache

import torch

from penstock_kernels.base.destination import Destination
from penstock_kernels.base.head_norm import NormOfHeads
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`Rotation` of src/rotary.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("heads", "cos", "sin", "weight")),
        *((name, ctypes.c_void_p) for name in ("query", "key_cache", "value_cache", "cache_positions")),
        *(
            (name, ctypes.c_int64)
            for name in ("num_tokens", "num_cache_positions", "token_stride", "head_stride")
        ),
        *((name, ctypes.c_int32) for name in ("num_heads", "num_kv_heads", "dim", "rotary_dim")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
        *((name, ctypes.c_float) for name in ("eps", "offset")),
    )


@cache
def _can_rotate(dim: int, rotary_dim: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_rotate(dim, rotary_dim))


def supports(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    target: Destination,
) -> bool:
    """Whether `rotate_and_store` can take these, as the op has checked them."""
    return (
        heads.dtype in DTYPES
        and target.key_cache.dtype == heads.dtype
        and _can_rotate(heads.shape[2], cos.shape[1])
    )


def supports_alone(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether `apply_rotary` can take these, as the op has checked them."""
    return heads.dtype in DTYPES and heads.dim() == 3 and _can_rotate(heads.shape[2], cos.shape[1])


def apply_rotary(
    heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, max_lanes: int = 0
) -> torch.Tensor:
    """See `rotate_and_store`."""
    return _rotate(heads, cos, sin, None, None, max_lanes)


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    target: Destination,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A token's bits do not depend on the other tokens. `max_lanes`: see `paged_attention`."""
    return _rotate(heads, cos, sin, norm, target, max_lanes)


def _rotate(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: NormOfHeads | None,
    target: Destination | None,
    max_lanes: int,
) -> torch.Tensor:
    """`target`: None where all heads are queries."""
    num_tokens, num_all, dim = heads.shape
    num_blocks, block_size, num_kv_heads, _ = (0, 0, 0, 0) if target is None else target.key_cache.shape
    num_heads = num_all - 2 * num_kv_heads
    query = torch.empty(num_tokens, num_heads, dim, dtype=heads.dtype)
    call = _Call(
        heads.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        None if norm is None else norm.weight.data_ptr(),
        query.data_ptr(),
        *((None,) * 3 if target is None else (part.data_ptr() for part in target[:3])),
        num_tokens,
        num_blocks * block_size,
        *heads.stride()[:2],
        num_heads,
        num_kv_heads,
        dim,
        cos.shape[1],
        DTYPES[heads.dtype],
        torch.get_num_threads() if heads.numel() >= WORTH_THREADS else 1,
        max_lanes,
        *((0.0, 0.0) if norm is None else norm[1:]),
    )
    kept = (heads, cos, sin, norm, query, target)

    def failure() -> Exception:
        assert target is not None, "nothing else can fail"
        return beyond("rotate_and_store", target.cache_positions, num_blocks * block_size)

    run("penstock_rotate", call, *kept, failure=failure)
    return query


def beyond(op: str, cache_positions: torch.Tensor, num_cache_positions: int) -> IndexError:
    """The error that names the first token whose cache position is not in the cache."""
    token = int(((cache_positions < 0) | (cache_positions >= num_cache_positions)).nonzero()[0])
    found = int(cache_positions[token])
    return IndexError(f"{op}: cache position {found} of token {token} is not in the cache")
