"""Matrix products by PyTorch, which is also what a GPU uses wherever a result may depend on the number of rows."""

import torch
import torch.nn.functional as F

# For invariance, rows are padded to a multiple of this: for fewer than four rows of float32, BLAS uses other kernels,
# which add in another order. On an AVX-512 core, 1024 x 4096: one row 0.38 ms, padded to eight 1.9.
INVARIANT_ROWS = 8


def linear(
    x: torch.Tensor,
    weights: tuple[torch.Tensor, ...],
    bias: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    if len(weights) == 1:
        return _product(x, weights[0], bias, invariant)
    counts = [weight.shape[0] for weight in weights]
    biases = [None] * len(weights) if bias is None else torch.split(bias, counts)
    parts = zip(weights, biases, strict=True)
    return torch.cat([_product(x, weight, its_bias, invariant) for weight, its_bias in parts], dim=1)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    missing = -x.shape[0] % INVARIANT_ROWS if invariant else 0
    if missing == 0:
        return F.linear(x, weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: x.shape[0]]
