"""Whether a tensor holds nothing but numbers."""

import torch

from penstock_kernels import reference
from penstock_kernels.native import finite as native


def all_finite(x: torch.Tensor) -> bool:
    """Whether no number of `x`, of any shape and floating type, is infinite or NaN."""
    return native.all_finite(x) if native.supports(x) else reference.all_finite(x)
