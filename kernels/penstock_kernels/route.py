"""The choice of experts for every token of a mixture of experts."""

from typing import NamedTuple

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require
from penstock_kernels.dispatch import runs_kernel


class Routes(NamedTuple):
    """The experts of every token, best first: [num_tokens, top_k] float32 and int64."""

    weights: torch.Tensor
    expert_ids: torch.Tensor


def route(logits: torch.Tensor, top_k: int, normalized: bool = False) -> Routes:
    """Softmax over the experts in float32, then the `top_k` largest; with `normalized` these sum to 1.

    logits: [num_tokens, num_experts]. Of equally likely experts the one of the smaller id comes first.
    """
    require(
        logits.dim() == 2 and (logits.stride(1) == 1 or logits.numel() == 0),
        lambda: f"route: logits {tuple(logits.shape)} must be rows",
    )
    require(0 < top_k <= logits.shape[1], lambda: f"route: top_k {top_k} of {logits.shape[1]} experts")
    if runs_kernel(logits):
        from penstock_kernels.gpu.routing import route as kernel

        return Routes(*kernel(logits, top_k, normalized))
    return Routes(*reference.route(logits, top_k, normalized))
