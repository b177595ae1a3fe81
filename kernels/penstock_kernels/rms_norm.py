"""Root-mean-square norm, fused with the residual addition that comes before it in a decoder."""

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Return `x / rms(x) * weight` over the last dimension, the mean square taken in float32.

    x: [..., dim]; weight: [dim], or [num_heads, dim] against x [num_tokens, num_heads, dim]; result like x.
    residual: like x. It is updated in place to `residual + x`, and that sum is what is normalised.
    """
    require(
        weight.shape == x.shape[x.dim() - weight.dim() :],
        f"rms_norm: weight {tuple(weight.shape)} against x {tuple(x.shape)}",
    )
    require_same_dtype("rms_norm", x=x, weight=weight)
    if residual is not None:
        require(residual.shape == x.shape, "rms_norm: residual and x differ in shape")
        require_same_dtype("rms_norm", x=x, residual=residual)
    return reference.rms_norm(x, weight, eps, residual)
