"""A product of few rows with the norm before it and the activation after it, where our kernels were measured to be
faster than one after the other.

Such a product is bound by reading its weight: 6144 x 4096 numbers of 16 bits take 12 us at the rate of a copy on an
H200. A norm or an activation as a launch of its own is some 2 us more.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.input_norm import InputNorm
from penstock_kernels.ops.activation import silu_mul
from penstock_kernels.ops.linear import linear
from penstock_kernels.ops.norm import rms_norm


def fused_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    norm: InputNorm | None = None,
    gated: bool = False,
) -> torch.Tensor:
    """`linear` of `rms_norm`, if there is a norm, and `silu_mul` of the result with `gated`.

    x: [num_rows, len]; weight: [num_columns, len]. Result: [num_rows, num_columns], half as wide with `gated`. What a
    row gets may depend on the number of rows. Where no kernel does all of it, it is these ops one after the other.
    """
    require(
        x.dim() == weight.dim() == 2 and x.shape[1] == weight.shape[1] and weight.is_contiguous(),
        lambda: f"fused_linear: x {tuple(x.shape)} against weight {tuple(weight.shape)}",
    )
    require(x.stride(1) == 1, "fused_linear: the numbers of a row must be contiguous")
    require(not gated or weight.shape[0] % 2 == 0, lambda: f"fused_linear: {weight.shape[0]} columns are odd")
    require(bias is None or bias.shape == weight.shape[:1], "fused_linear: one bias per row of the weight")
    require_same_dtype("fused_linear", x=x, weight=weight, bias=weight if bias is None else bias)
    if norm is not None:
        _check_norm(x, norm)
    if is_fused(x, weight):
        return table.fused_linear(x, weight, bias, norm, gated)
    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps, norm.residual, norm.weight_offset)
    product = linear(x, weight, bias)
    return silu_mul(product) if gated else product


def is_fused(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `fused_linear` of these is more than its ops one after the other."""
    return table.fused_linear.choose(x, weight, None, None, False) is not table.fused_linear.reference


def _check_norm(x: torch.Tensor, norm: InputNorm) -> None:
    weight, residual = norm.weight, norm.residual
    require(
        weight.shape == x.shape[1:] and weight.is_contiguous(),
        lambda: f"fused_linear: norm of {tuple(weight.shape)} against x {tuple(x.shape)}",
    )
    require(
        residual.shape == x.shape and residual.is_contiguous(),
        lambda: f"fused_linear: residual {tuple(residual.shape)} against x {tuple(x.shape)}",
    )
    require_same_dtype("fused_linear", x=x, norm=weight, residual=residual)
