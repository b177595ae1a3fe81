"""The norm of queries and keys that comes before their rotation, as an argument of the op that does both."""

from typing import NamedTuple

import torch


class NormOfHeads(NamedTuple):
    """Arguments of `rms_norm`, with a row of weights for each head."""

    weight: torch.Tensor
    eps: float = 1e-6
    weight_offset: float = 0.0
