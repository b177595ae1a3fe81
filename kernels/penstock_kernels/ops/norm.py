"""Norms over the last dimension, fused with the residual addition that comes before them in a decoder."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """Return `x / rms(x) * (weight + weight_offset)` over the last dimension, the mean square taken in float32.

    x: [..., dim]; weight: [dim], or [num_heads, dim] against x [num_tokens, num_heads, dim]; result like x.
    residual: like x. It is updated in place to `residual + x`, and that sum is what is normalised.
    `weight_offset` is 1 for models that store their weights around 0, as Gemma does.
    """
    _check_weight("rms_norm", x, weight)
    _check("rms_norm", x, weight, residual)
    return table.rms_norm(x, weight, eps, residual, weight_offset)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `(x - mean) / std * weight + bias` over the last dimension. Shapes as in `rms_norm`; bias: as weight."""
    _check_weight("layer_norm", x, weight)
    _check("layer_norm", x, weight, residual)
    if bias is not None:
        require(
            bias.shape == weight.shape and bias.is_contiguous(),
            lambda: f"layer_norm: bias {tuple(bias.shape)} against weight {tuple(weight.shape)}",
        )
        require_same_dtype("layer_norm", weight=weight, bias=bias)
    return table.layer_norm(x, weight, bias, eps, residual)


def _check_weight(op: str, x: torch.Tensor, weight: torch.Tensor) -> None:
    require(
        weight.dim() <= 2 and weight.is_contiguous() and weight.shape == x.shape[x.dim() - weight.dim() :],
        lambda: f"{op}: weight {tuple(weight.shape)} against x {tuple(x.shape)}",
    )


def _check(op: str, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> None:
    require_same_dtype(op, x=x, weight=weight)
    require(x.stride(-1) == 1, lambda: f"{op}: the last dimension of x must be contiguous")
    require(
        x.dim() in (2, 3) or x.is_contiguous(), lambda: f"{op}: x of {x.dim()} dimensions must be contiguous"
    )
    if residual is None:
        return
    require(residual.shape == x.shape, lambda: f"{op}: residual and x differ in shape")
    require(residual.is_contiguous(), lambda: f"{op}: residual must be contiguous")
    require_same_dtype(op, x=x, residual=residual)
