"""A mixture of experts on the CPU: in C where the products can be, for any choice of experts by the same calls."""

from collections.abc import Callable

import torch

from penstock_kernels import reference
from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.native import linear as native
from penstock_kernels.native.grouped_linear import grouped_linear
from penstock_kernels.native.library import DTYPES, library
from penstock_kernels.native.route import sum_of_choices


def supports(x: torch.Tensor, *_: object) -> bool:
    """Whether any of the products can be in C."""
    return x.dtype in DTYPES and library() is not None


def grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    invariant: bool,
    part: ExpertPart | None = None,
) -> torch.Tensor:
    """The op in C."""
    biases = gate_up_bias, down_bias
    if not all(native.can_multiply(matrix.shape[2]) for matrix in (gate_up, down)):
        rest = activate, *biases, invariant, part, multiply
        return reference.grouped_mlp(x, expert_ids, expert_weights, gate_up, down, *rest)
    flat = expert_ids.flatten().to(torch.int64)
    if not len(flat):
        return torch.zeros_like(x)
    hidden = activate(grouped_linear(x, flat, gate_up, gate_up_bias, part=part))
    found = grouped_linear(hidden, flat, down, down_bias, part=part)
    return sum_of_choices(found, expert_weights)


def multiply(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """A product in C, if it can take it."""
    if native.supports(x, weights, bias, invariant):
        return native.linear(x, weights, bias, invariant)
    return reference.linear(x, weights, bias, invariant)
