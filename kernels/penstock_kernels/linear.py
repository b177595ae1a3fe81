"""Matrix products of a model's layers: the library's on a GPU, on a CPU the library's or ours, whichever is faster.

The library's sums depend on the number of rows; where that must not be, a GPU runs a kernel of tiles that are the same
for every number, and a CPU our own product or a padded one.
"""

import torch
import torch.nn.functional as F

from penstock_kernels.checks import require, require_same_dtype
from penstock_kernels.dispatch import runs_kernel
from penstock_kernels.native import linear as native

# Where the library multiplies, rows are padded to a multiple of this for invariance: in float32 BLAS takes other
# kernels, and other sums, for fewer than four. On an AVX-512 core, 1024 x 4096: one row 0.38 ms, padded to eight 1.9.
INVARIANT_ROWS = 8


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, invariant: bool = False
) -> torch.Tensor:
    """`x @ weight.T + bias`: [num_rows, len] and [num_columns, len] to [num_rows, num_columns].

    With `invariant`, a row's result has the same bits however many rows there are.
    """
    require(
        x.dim() == 2 and weight.dim() == 2 and x.shape[1] == weight.shape[1],
        f"linear: x {tuple(x.shape)} against weight {tuple(weight.shape)}",
    )
    require(bias is None or bias.shape == weight.shape[:1], "linear: one bias per row of the weight")
    require(x.stride(1) == 1 and weight.is_contiguous(), "linear: the numbers of a row must be contiguous")
    require_same_dtype("linear", x=x, weight=weight, bias=weight if bias is None else bias)
    if invariant and x.numel() and runs_kernel(x):
        from penstock_kernels.gpu.linear import invariant_linear

        return invariant_linear(x, weight, bias)
    if native.supports(x, weight) and (invariant or native.pays(x.dtype)):
        return native.multiply(x, weight, bias)
    missing = -x.shape[0] % INVARIANT_ROWS if invariant else 0
    if missing == 0:
        return F.linear(x, weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: x.shape[0]]
