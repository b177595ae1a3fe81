"""The type that sums are taken in."""

import torch


def wide_type(dtype: torch.dtype) -> torch.dtype:
    """float32 for all but larger ones. `torch.promote_types` is an op, which a recording refuses."""
    return dtype if dtype == torch.float64 else torch.float32
