"""Feed-forward layers of a mixture of experts: two products per expert, over the tokens that chose it."""

from collections.abc import Callable

import torch

from penstock_kernels.reference.linear import linear

# As `linear`: rows, weights, bias and whether a row may not depend on the number of rows.
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
    multiply: Multiply = linear,
) -> torch.Tensor:
    def compute(expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate_up_row = None if gate_up_bias is None else gate_up_bias[expert]
        down_row = None if down_bias is None else down_bias[expert]
        hidden = activate(multiply(rows, (gate_up[expert],), gate_up_row, invariant))
        return multiply(hidden, (down[expert],), down_row, invariant)

    return sum_of_experts(x, expert_ids, expert_weights, gate_up.shape[0], compute)


def sum_of_experts(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    num_experts: int,
    compute: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """The weighted sum of what `compute` makes of an expert and the tokens that chose it, as many as they are."""
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=num_experts).tolist()
    gathered = x[order // expert_ids.shape[1]]
    outputs = torch.empty(len(flat), x.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count:
            rows = order[start : start + count]
            outputs[rows] = compute(expert, gathered[start : start + count])
            start += count
    weighted = outputs.view(*expert_ids.shape, x.shape[1]).float() * expert_weights.float().unsqueeze(-1)
    return weighted.sum(1).to(x.dtype)
