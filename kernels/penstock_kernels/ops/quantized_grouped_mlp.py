"""Feed-forward layers of a mixture of experts whose weights are in few bits."""

from collections.abc import Callable

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.base.quantized import Matrix
from penstock_kernels.ops.grouped_mlp import check_part


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
) -> torch.Tensor:
    """`grouped_mlp` with quantized weights. `gate_up`: the parts of every expert, together [2 * size, dim] (its gate
    and its up projection); `down`: a matrix [dim, size] of every expert."""
    _check(x, expert_ids, expert_weights, gate_up, down)
    check_part("quantized_grouped_mlp", part, len(down))
    return table.quantized_grouped_mlp(
        x, expert_ids, expert_weights, gate_up, down, activate, gate_up_bias, down_bias, invariant, part
    )


def _check(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: tuple[tuple[Matrix, ...], ...],
    down: tuple[Matrix, ...],
) -> None:
    op = "quantized_grouped_mlp"
    require(len(gate_up) == len(down), lambda: f"{op}: {len(gate_up)} gate_up and {len(down)} down")
    require(
        expert_ids.dim() == 2
        and expert_ids.shape == expert_weights.shape
        and expert_ids.shape[0] == x.shape[0],
        lambda: f"{op}: expert_ids {tuple(expert_ids.shape)}, expert_weights {tuple(expert_weights.shape)}",
    )
    for parts, last in zip(gate_up, down, strict=True):
        rows = sum(part.shape[0] for part in parts)
        is_right = all(part.shape[1] == x.shape[1] for part in parts) and tuple(last.shape) == (
            x.shape[1],
            rows // 2,
        )
        require(is_right, lambda: f"{op}: an expert's matrices do not fit x {tuple(x.shape)}")


def captures_experts(
    device: torch.device, gate_up: tuple[tuple[Matrix, ...], ...], down: tuple[Matrix, ...]
) -> bool:
    """Whether their products ask nothing on the host, as a step in a CUDA graph must. True where there are none."""
    if device.type != "cuda":
        return True
    return runs_kernels(device) and table.quantized_grouped_mlp.gpu_if(None, None, None, gate_up, down)
