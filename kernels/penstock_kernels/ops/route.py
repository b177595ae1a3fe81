"""The choice of experts for every token of a mixture of experts."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.results import Routes
from penstock_kernels.base.routing import PLAIN, Routing


def route(
    logits: torch.Tensor,
    top_k: int,
    normalized: bool = False,
    correction: torch.Tensor | None = None,
    routing: Routing = PLAIN,
) -> Routes:
    """Scores of the experts in float32, by softmax or as `routing` says, then the `top_k` largest; with `normalized`
    their weights sum to 1 (before `routing.scale`).

    logits: [num_tokens, num_experts]. Of equally likely experts the one of the smaller id comes first. `correction`:
    [num_experts] float32, added to the scores for the choice only; weights are the scores without it.
    """
    require(
        logits.dim() == 2 and (logits.stride(1) == 1 or logits.numel() == 0),
        lambda: f"route: logits {tuple(logits.shape)} must be rows",
    )
    num_experts = logits.shape[1]
    per_group = num_experts // max(routing.num_groups, 1)
    require(
        0 < routing.top_groups <= routing.num_groups
        and num_experts % routing.num_groups == 0
        and (not routing.sums_pairs or per_group > 1),
        lambda: f"route: {routing.top_groups} of {routing.num_groups} groups of {num_experts} experts",
    )
    require(
        0 < top_k <= routing.top_groups * per_group,
        lambda: f"route: top_k {top_k} of {routing.top_groups * per_group} experts",
    )
    require(
        correction is None or (correction.shape == logits.shape[1:] and correction.dtype == torch.float32),
        "route: correction must be float32, one per expert",
    )
    return table.route(logits, top_k, normalized, correction, routing)


def route_near(logits: torch.Tensor, top_k: int, distance: float) -> Routes:
    """The `top_k` largest scores, one after the other. The weight of each is its softmax among those of the experts not
    chosen before that are near: that lack at most `distance` of it, or of themselves where they are larger.

    logits: [num_tokens, num_experts]. Of equally good experts the one of the smaller id comes first.
    """
    require(logits.dim() == 2, lambda: f"route_near: logits {tuple(logits.shape)} must be rows")
    require(0 < top_k <= logits.shape[1], lambda: f"route_near: top_k {top_k} of {logits.shape[1]} experts")
    require(distance >= 0, lambda: f"route_near: distance {distance} must not be below 0")
    return table.route_near(logits, top_k, distance)
