"""Feed-forward layers of a mixture of experts: two products per expert, over the tokens that chose it."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.reference.linear import linear

# A product as `linear`: rows, weights, bias and whether a row may not depend on the number of rows.
Multiply = Callable[[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor | None, bool], torch.Tensor]


def grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    invariant: bool = False,
    part: ExpertPart | None = None,
    multiply: Multiply = linear,
) -> torch.Tensor:
    def compute(expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate_up_row = None if gate_up_bias is None else gate_up_bias[expert]
        down_row = None if down_bias is None else down_bias[expert]
        hidden = activate(multiply(rows, (gate_up[expert],), gate_up_row, invariant))
        return multiply(hidden, (down[expert],), down_row, invariant)

    return sum_of_experts(x, expert_ids, expert_weights, gate_up.shape[0], compute, part)


def sum_of_experts(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    num_experts: int,
    compute: Callable[[int, torch.Tensor], torch.Tensor],
    part: ExpertPart | None = None,
) -> torch.Tensor:
    """The weighted sum of what `compute` makes of an expert and the tokens that chose it, as many as they are.

    `compute` counts experts from the first that is here.
    """
    order, counts = pairs_by_expert(expert_ids, num_experts, part)
    gathered = x[order // expert_ids.shape[1]]
    outputs = torch.empty_like(gathered)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            rows = slice(start, start + count)
            outputs[rows] = compute(expert, gathered[rows])
            start += count
    return sum_of_pairs(outputs, order, expert_weights)


class PairsByExpert(NamedTuple):
    """The pairs whose expert is here, by expert: pair p is choice p % top_k of token p // top_k."""

    order: torch.Tensor
    # The number of pairs of each expert that is here.
    counts: list[int]


def pairs_by_expert(
    expert_ids: torch.Tensor, num_experts: int, part: ExpertPart | None = None
) -> PairsByExpert:
    """Sorted on the host; `num_experts` are here."""
    first, total = part or ExpertPart(0, num_experts)
    flat = expert_ids.flatten()
    counts = torch.bincount(flat, minlength=total).tolist()
    before, counts = sum(counts[:first]), counts[first : first + num_experts]
    return PairsByExpert(flat.argsort(stable=True)[before : before + sum(counts)], counts)


def sum_of_pairs(found: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of the results of each token's pairs. `found`: the results of the pairs in `order`;
    `weights`: [num_tokens, top_k]."""
    make = torch.empty if len(order) == weights.numel() else torch.zeros
    outputs = make(weights.numel(), found.shape[1], dtype=found.dtype, device=found.device)
    outputs[order] = found
    weighted = outputs.view(*weights.shape, found.shape[1]).float() * weights.float().unsqueeze(-1)
    return weighted.sum(1).to(found.dtype)
