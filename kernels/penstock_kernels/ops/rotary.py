"""Rotary position embedding, alone or fused with the norm of heads before it and the write of the cache after it."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.destination import Destination
from penstock_kernels.base.head_norm import NormOfHeads
from penstock_kernels.ops.store_kv import check_destination


def rotary_table(
    positions: torch.Tensor,
    inv_freq: torch.Tensor,
    amplitude: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of `position * inv_freq`, times `amplitude`, as the other ops take them.

    positions: [num_tokens] int64; inv_freq: [rotary_dim / 2] float32. Results: [num_tokens, rotary_dim], computed in
    float32 and rounded to `dtype`.
    """
    require(
        positions.dim() == 1 and positions.is_contiguous() and positions.dtype == torch.int64,
        "rotary_table: positions must be one contiguous row of int64",
    )
    require(
        inv_freq.dim() == 1 and inv_freq.is_contiguous() and inv_freq.dtype == torch.float32,
        "rotary_table: inv_freq must be one contiguous row of float32",
    )
    return table.rotary_table(positions, inv_freq, amplitude, dtype)


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first `rotary_dim` numbers of every head: `x * cos + swap_halves(x) * sin`.

    heads: [num_tokens, num_heads, head_dim]: query and key heads side by side, as a fused projection leaves them,
    so that one call serves both. cos, sin: [num_tokens, rotary_dim], computed once per step for all layers; the
    first half of `sin` is negated already. Returns a new tensor like `heads`.
    """
    _check("apply_rotary", heads, cos, sin)
    return table.apply_rotary(heads, cos, sin)


def rotate_and_store(
    heads: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    cache_positions: torch.Tensor,
    norm: NormOfHeads | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Norm and rotate queries and keys, store keys and values in the cache, return the queries, contiguous.

    heads: [num_tokens, num_heads + 2 * num_kv_heads, head_dim]: queries, keys, values. Weights of `norm`:
    [num_heads + num_kv_heads, head_dim], a row per head. The cache as in `store_kv`; it may be float8_e4m3fn, then what
    is stored is the number divided by its scale.
    """
    op = "rotate_and_store"
    _check(op, heads, cos, sin)
    num_kv_heads = key_cache.shape[2]
    num_heads = heads.shape[1] - 2 * num_kv_heads
    require(
        num_heads > 0,
        lambda: f"{op}: {heads.shape[1]} heads with {num_kv_heads} key heads leave no query heads",
    )
    destination = Destination(key_cache, value_cache, cache_positions, key_scale, value_scale)
    check_destination(op, destination, (heads.shape[0], num_kv_heads, heads.shape[2]), heads.dtype)
    if norm is not None:
        weight, expected = norm.weight, (num_heads + num_kv_heads, heads.shape[2])
        require(
            weight.shape == expected and weight.is_contiguous(),
            lambda: f"{op}: norm_weight {tuple(weight.shape)}, expected {expected}",
        )
        require_same_dtype(op, heads=heads, norm_weight=weight)
    return table.rotate_and_store(heads, cos, sin, norm, destination)


def _check(op: str, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    require(
        cos.shape == sin.shape and cos.shape[0] == heads.shape[0],
        lambda: f"{op}: cos {tuple(cos.shape)}, sin {tuple(sin.shape)}, heads {tuple(heads.shape)}",
    )
    require(
        cos.shape[1] % 2 == 0 and 0 < cos.shape[1] <= heads.shape[2],
        lambda: f"{op}: rotary_dim {cos.shape[1]} must be even and at most head_dim {heads.shape[2]}",
    )
    require(cos.is_contiguous() and sin.is_contiguous(), lambda: f"{op}: cos and sin must be contiguous")
    require(heads.stride(2) == 1, lambda: f"{op}: the numbers of a head must be contiguous")
    require_same_dtype(op, heads=heads, cos=cos, sin=sin)
