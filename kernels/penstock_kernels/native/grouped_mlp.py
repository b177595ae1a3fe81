"""A mixture of experts on the CPU: the reference, with products in C wherever these can take them."""

from collections.abc import Callable

import torch

from penstock_kernels import reference
from penstock_kernels.native import linear as native
from penstock_kernels.native.library import DTYPES, library


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
) -> torch.Tensor:
    """As the op."""
    biases = gate_up_bias, down_bias
    return reference.grouped_mlp(
        x, expert_ids, expert_weights, gate_up, down, activate, *biases, invariant, multiply
    )


def multiply(
    x: torch.Tensor, weights: tuple[torch.Tensor, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """A product in C, if it can take it."""
    if native.supports(x, weights, bias, invariant):
        return native.linear(x, weights, bias, invariant)
    return reference.linear(x, weights, bias, invariant)
