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
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
    gathered = x[order // expert_ids.shape[1]]
    outputs = torch.empty(len(flat), down.shape[1], dtype=x.dtype, device=x.device)
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = gathered[start : start + count]
        gate_up_row = None if gate_up_bias is None else gate_up_bias[expert]
        down_row = None if down_bias is None else down_bias[expert]
        hidden = activate(multiply(rows, (gate_up[expert],), gate_up_row, invariant))
        outputs[order[start : start + count]] = multiply(hidden, (down[expert],), down_row, invariant)
        start += count
    weighted = outputs.view(*expert_ids.shape, down.shape[1]).float() * expert_weights.float().unsqueeze(-1)
    return weighted.sum(1).to(x.dtype)
