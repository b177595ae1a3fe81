"""Whether a tensor holds finite numbers only."""

import torch

from penstock_kernels import table


def all_finite(x: torch.Tensor) -> bool:
    """Whether no number of `x`, of any shape and floating type, is infinite or NaN."""
    return table.all_finite(x)
