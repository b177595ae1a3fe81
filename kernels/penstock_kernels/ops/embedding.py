"""Token embedding over the part of the vocabulary that a rank holds."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require


def embedding(token_ids: torch.Tensor, weight: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Rows of `weight` by token; zeros for tokens outside `first .. first + len(weight)`, which other ranks hold.

    token_ids: [num_tokens] integers; weight: [num_rows, dim] contiguous. Result: [num_tokens, dim].
    """
    require(
        token_ids.dim() == 1 and token_ids.is_contiguous(), "embedding: token_ids must be one contiguous row"
    )
    require(not token_ids.is_floating_point(), lambda: f"embedding: token_ids are {token_ids.dtype}")
    require(weight.dim() == 2 and weight.is_contiguous(), "embedding: weight must be a contiguous matrix")
    return table.embedding(token_ids, weight, first)
