"""A product with what comes before and after it in a decoder."""

import torch

from penstock_kernels.base.input_norm import InputNorm
from penstock_kernels.reference.activation import silu_mul
from penstock_kernels.reference.linear import linear
from penstock_kernels.reference.norm import rms_norm


def fused_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    norm: InputNorm | None,
    gated: bool,
) -> torch.Tensor:
    if norm is not None:
        x = rms_norm(x, norm.weight, norm.eps, norm.residual, norm.weight_offset)
    product = linear(x, (weight,), bias)
    return silu_mul(product) if gated else product
