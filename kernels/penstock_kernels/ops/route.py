"""The choice of experts for every token of a mixture of experts."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.results import Routes


def route(logits: torch.Tensor, top_k: int, normalized: bool = False) -> Routes:
    """Softmax over the experts in float32, then the `top_k` largest; with `normalized` these sum to 1.

    logits: [num_tokens, num_experts]. Of equally likely experts the one of the smaller id comes first.
    """
    require(
        logits.dim() == 2 and (logits.stride(1) == 1 or logits.numel() == 0),
        lambda: f"route: logits {tuple(logits.shape)} must be rows",
    )
    require(0 < top_k <= logits.shape[1], lambda: f"route: top_k {top_k} of {logits.shape[1]} experts")
    return table.route(logits, top_k, normalized)
