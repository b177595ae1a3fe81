"""Experts with weights in few bits: one expert at a time becomes floats, and only one that a token chose."""

from collections.abc import Callable

import torch

from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.base.quantized import Matrix
from penstock_kernels.reference.grouped_mlp import sum_of_experts
from penstock_kernels.reference.quantized_linear import multiply

# A product as `multiply`: rows, parts, bias and whether a row may not depend on the number of rows.
Multiply = Callable[[torch.Tensor, tuple[Matrix, ...], torch.Tensor | None, bool], torch.Tensor]


def quantized_grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: tuple[tuple[Matrix, ...], ...],
    down: tuple[Matrix, ...],
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    invariant: bool = False,
    part: ExpertPart | None = None,
    multiply: Multiply = multiply,
) -> torch.Tensor:
    def compute(expert: int, rows: torch.Tensor) -> torch.Tensor:
        gate_up_row = None if gate_up_bias is None else gate_up_bias[expert]
        down_row = None if down_bias is None else down_bias[expert]
        hidden = activate(multiply(rows, gate_up[expert], gate_up_row, invariant))
        return multiply(hidden, (down[expert],), down_row, invariant)

    return sum_of_experts(x, expert_ids, expert_weights, len(down), compute, part)
