"""The choice of experts for every token."""

import torch

from penstock_kernels.base.results import Routes
from penstock_kernels.base.routing import PLAIN, Routing
from penstock_kernels.base.wide_type import wide_type

# Keeps scores that are all 0 from becoming NaN.
_TINY = 1e-20


def route(
    logits: torch.Tensor,
    top_k: int,
    normalized: bool,
    correction: torch.Tensor | None = None,
    routing: Routing = PLAIN,
) -> Routes:
    wide = wide_type(logits.dtype)
    scores = logits.to(wide).sigmoid() if routing.sigmoid else logits.softmax(-1, dtype=wide)
    merit = scores if correction is None else scores + correction
    if routing.num_groups > 1:
        merit = _among_groups(merit, routing)
    expert_ids = merit.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(-1, expert_ids)
    if normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    if routing.scale != 1.0:
        weights = weights * routing.scale
    return Routes(weights.contiguous(), expert_ids.contiguous())


def route_near(logits: torch.Tensor, top_k: int, distance: float) -> Routes:
    found = logits.to(wide_type(logits.dtype)).sort(dim=-1, descending=True, stable=True)
    # [num_tokens, choice, expert], experts from the best one on.
    scores, best = found.values.unsqueeze(1), found.values[:, :top_k].unsqueeze(2)
    is_far = (best - scores) / scores.abs().maximum(best) > distance
    places = torch.arange(logits.shape[1], device=logits.device)
    is_chosen_before = places < places[:top_k, None]
    weights = (scores - best).masked_fill_(is_far | is_chosen_before, -torch.inf).exp_().sum(-1).reciprocal_()
    return Routes(weights, found.indices[:, :top_k].contiguous())


def _among_groups(merit: torch.Tensor, routing: Routing) -> torch.Tensor:
    """`merit`, with -inf outside the groups that a token chose."""
    grouped = merit.view(len(merit), routing.num_groups, merit.shape[1] // routing.num_groups)
    worth = grouped.topk(2, dim=-1).values.sum(-1) if routing.sums_pairs else grouped.amax(-1)
    chosen = worth.topk(routing.top_groups, dim=-1).indices
    is_chosen = torch.zeros_like(worth, dtype=torch.bool).scatter_(-1, chosen, True)
    return grouped.masked_fill(~is_chosen.unsqueeze(-1), -torch.inf).flatten(-2)
