"""Rotary position embedding."""

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype


def apply_rotary(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the first `rotary_dim` numbers of every head: `x * cos + swap_halves(x) * sin`.

    heads: [num_tokens, num_heads, head_dim]: query and key heads side by side, as a fused projection leaves them,
    so that one call serves both. cos, sin: [num_tokens, rotary_dim], computed once per step for all layers; the
    first half of `sin` is negated already. Returns a new tensor like `heads`.
    """
    require(
        cos.shape == sin.shape and cos.shape[0] == heads.shape[0],
        f"apply_rotary: cos {tuple(cos.shape)}, sin {tuple(sin.shape)}, heads {tuple(heads.shape)}",
    )
    require(
        cos.shape[1] % 2 == 0 and cos.shape[1] <= heads.shape[2],
        f"apply_rotary: rotary_dim {cos.shape[1]} must be even and at most head_dim {heads.shape[2]}",
    )
    require_same_dtype("apply_rotary", heads=heads, cos=cos, sin=sin)
    return reference.apply_rotary(heads, cos, sin)
