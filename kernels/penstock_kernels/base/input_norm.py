"""The norm that comes before a product, as an argument of the op that does both."""

from typing import NamedTuple

import torch


class InputNorm(NamedTuple):
    """Arguments of `rms_norm`: the input of the product is added to `residual` in place, and the sum is normed."""

    weight: torch.Tensor
    eps: float
    residual: torch.Tensor
    weight_offset: float = 0.0
