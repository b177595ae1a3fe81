"""Gated activations of a feed-forward layer."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`.

    gate_up: [..., 2 * dim], gate first, as one fused projection leaves them. Result: [..., dim].
    """
    _check("silu_mul", gate_up)
    return table.silu_mul(gate_up)


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True) -> torch.Tensor:
    """Return `gelu(gate) * up`, with the tanh approximation or exact. Shapes as in `silu_mul`."""
    _check("gelu_mul", gate_up)
    return table.gelu_mul(gate_up, tanh)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    """Return `gate * sigmoid(alpha * gate) * (up + 1)`, gate at most `limit`, up within it. Shapes as in `silu_mul`."""
    _check("clamped_swiglu", gate_up)
    return table.clamped_swiglu(gate_up, alpha, limit)


def _check(op: str, gate_up: torch.Tensor) -> None:
    require(gate_up.shape[-1] % 2 == 0, lambda: f"{op}: last dimension {gate_up.shape[-1]} is odd")
    require(gate_up.stride(-1) == 1, lambda: f"{op}: the last dimension must be contiguous")
