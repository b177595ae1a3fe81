"""Feed-forward layers of a mixture of experts, each of which computes the tokens that chose it."""

from collections.abc import Callable

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.expert_part import ExpertPart


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
) -> torch.Tensor:
    """Sum over a token's experts of `weight * down(activate(gate_up(x)))`.

    x: [num_tokens, dim]; expert_ids: [num_tokens, top_k] integers below num_experts; expert_weights: likewise, floats;
    gate_up: [num_experts, 2 * size, dim]; down: [num_experts, dim, size]; biases: [num_experts, 2 * size] and
    [num_experts, dim]; all but x contiguous. `activate` takes [num_rows, 2 * size] to [num_rows, size], contiguous.
    Without gates gate_up has size rows for each expert, and `activate` keeps the shape.
    Tokens are sorted by expert, so that each expert's weights are read once for all of its tokens; on a GPU the device
    sorts, and neither launches nor shapes depend on what was chosen. A token's result does not depend on the order, and
    with `invariant` not on the other tokens either. `part`: which of all experts these are, where ranks have some each:
    `expert_ids` are below `part.total`, and what others would add is left out.
    """
    _check(x, expert_ids, expert_weights, gate_up, down)
    check_part("grouped_mlp", part, len(gate_up))
    for name, bias, weight in (("gate_up", gate_up_bias, gate_up), ("down", down_bias, down)):
        if bias is not None:
            _check_bias(name, bias, weight)
    return table.grouped_mlp(
        x, expert_ids, expert_weights, gate_up, down, activate, gate_up_bias, down_bias, invariant, part
    )


def check_part(op: str, part: ExpertPart | None, num_experts: int) -> None:
    """Whether there can be so many experts of such a part."""
    require(part is None or part.holds(num_experts), lambda: f"{op}: {num_experts} experts are no {part}")


def _check(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> None:
    op = "grouped_mlp"
    num_experts, ups, dim = gate_up.shape
    require(
        x.dim() == 2
        and x.shape[1] == dim
        and down.shape in ((num_experts, dim, ups // 2), (num_experts, dim, ups)),
        lambda: f"{op}: x {tuple(x.shape)}, gate_up {tuple(gate_up.shape)}, down {tuple(down.shape)}",
    )
    require(
        expert_ids.dim() == 2
        and expert_ids.shape == expert_weights.shape
        and expert_ids.shape[:1] == x.shape[:1],
        lambda: f"{op}: expert_ids {tuple(expert_ids.shape)}, expert_weights {tuple(expert_weights.shape)}",
    )
    require(not expert_ids.is_floating_point(), lambda: f"{op}: expert_ids are {expert_ids.dtype}")
    require(x.stride(1) == 1 or x.numel() == 0, lambda: f"{op}: the numbers of a token must be contiguous")
    given = {"expert_ids": expert_ids, "expert_weights": expert_weights, "gate_up": gate_up, "down": down}
    for name, tensor in given.items():
        require(tensor.is_contiguous(), f"{op}: {name} must be contiguous")
    require_same_dtype(op, x=x, gate_up=gate_up, down=down)


def _check_bias(name: str, bias: torch.Tensor, weight: torch.Tensor) -> None:
    require(
        bias.shape == weight.shape[:2] and bias.is_contiguous(),
        lambda: f"grouped_mlp: {name}_bias {tuple(bias.shape)} against {name} {tuple(weight.shape)}",
    )
    require_same_dtype("grouped_mlp", **{name: weight, f"{name}_bias": bias})
