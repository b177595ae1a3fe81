"""Where new keys and values go."""

from typing import NamedTuple

import torch


class Destination(NamedTuple):
    """The paged cache as `store_kv` says, and a slot per token; what is stored is divided by the scales."""

    key_cache: torch.Tensor
    value_cache: torch.Tensor
    slots: torch.Tensor  # [num_tokens] int64
    key_scale: float = 1.0
    value_scale: float = 1.0
