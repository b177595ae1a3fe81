"""Feed-forward layers of a mixture of experts, each of which sees the tokens that chose it."""

from collections.abc import Callable

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype


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
) -> torch.Tensor:
    """Sum over a token's experts of `weight * down(activate(gate_up(x)))`.

    x: [num_tokens, dim]; expert_ids: [num_tokens, top_k] integers below num_experts; expert_weights: likewise, floats;
    gate_up: [num_experts, 2 * size, dim]; down: [num_experts, dim, size]; biases: [num_experts, 2 * size] and
    [num_experts, dim]. Tokens are sorted by expert, so that each expert is multiplied once with all of its tokens.
    A token's result does not depend on the order, and with `invariant` not on its company either. It has no kernel of
    its own: the products are those of `linear`, and the host waits for the counts.
    """
    op = "grouped_mlp"
    num_experts, double, dim = gate_up.shape
    require(
        x.dim() == 2 and x.shape[1] == dim and down.shape == (num_experts, dim, double // 2),
        f"{op}: x {tuple(x.shape)}, gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}",
    )
    require(
        expert_ids.shape == expert_weights.shape and expert_ids.shape[:1] == x.shape[:1],
        f"{op}: expert_ids {tuple(expert_ids.shape)}, expert_weights {tuple(expert_weights.shape)}",
    )
    require_same_dtype(op, x=x, gate_up=gate_up, down=down)
    return reference.grouped_mlp(
        x, expert_ids, expert_weights, gate_up, down, activate, gate_up_bias, down_bias, invariant
    )
