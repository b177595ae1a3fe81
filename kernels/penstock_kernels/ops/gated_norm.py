"""The norm of what a recurrent layer gives, with its gate: one read, one write."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    gate_first: bool,
    has_silu: bool = True,
) -> torch.Tensor:
    """Return `x / rms(x) * weight * silu(gate)`, each group by itself; with `gate_first`, x is gated before the norm.
    Without `has_silu` the gate is `sigmoid(gate)`.

    x: [num_tokens, num_groups, size]; gate: [num_tokens, num_groups * size]; weight: [size], one for all groups, or
    [num_groups, size], float32. Computed in float32; what is normed is rounded to the type of x before the weight.
    Result: as gate.
    """
    num_groups, size = x.shape[1:]
    require(
        gate.shape == (len(x), num_groups * size)
        and weight.shape in {(size,), (num_groups, size)}
        and weight.dtype == torch.float32,
        lambda: f"gated_norm: x {tuple(x.shape)}, gate {tuple(gate.shape)}, weight {tuple(weight.shape)}",
    )
    require_same_dtype("gated_norm", x=x, gate=gate)
    return table.gated_norm(x, gate, weight, eps, gate_first, has_silu)
