"""Where new keys and values are stored."""

from typing import NamedTuple

import torch

# The type of a cache with 8-bit numbers.
FP8 = torch.float8_e4m3fn


class Destination(NamedTuple):
    """The paged cache as in `store_kv`, and a cache position per token. Stored numbers are divided by the scales."""

    key_cache: torch.Tensor
    value_cache: torch.Tensor
    cache_positions: torch.Tensor  # [num_tokens] int64, `block * block_size + offset`
    key_scale: float = 1.0
    value_scale: float = 1.0
