"""Activations of a feed-forward layer, gated or not, and gates of what a layer found."""

from typing import get_args

import torch

from penstock_kernels import table
from penstock_kernels.base.activation import Activation
from penstock_kernels.base.checks import require, require_same_dtype


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """Return the activation of every number; `relu2` is the square of `relu`. x: [..., dim]; result like x."""
    known = get_args(Activation)
    require(activation in known, lambda: f"activate: {activation!r} is none of {', '.join(known)}")
    require(x.stride(-1) == 1, lambda: "activate: the last dimension must be contiguous")
    return table.activate(x, activation)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return `cap * tanh(x / cap)` of every number. x: [..., dim]; result like x."""
    require(cap > 0, lambda: f"soft_cap: cap {cap} must be above 0")
    require(x.stride(-1) == 1, lambda: "soft_cap: the last dimension must be contiguous")
    return table.soft_cap(x, cap)


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


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """`x * sigmoid(gates)`, in place; returns x.

    x: [num_rows, len], contiguous. gates: as x, or [num_rows, 1] for one gate of each row; rows of them may lie apart.
    """
    op = "gate_by_sigmoid"
    require(x.dim() == 2 and x.is_contiguous(), lambda: f"{op}: x {tuple(x.shape)} must be contiguous rows")
    require(
        gates.dim() == 2 and len(gates) == len(x) and gates.shape[1] in {1, x.shape[1]},
        lambda: f"{op}: gates {tuple(gates.shape)} for x {tuple(x.shape)}",
    )
    require(gates.stride(1) == 1, lambda: f"{op}: the gates of a row must be contiguous")
    require_same_dtype(op, x=x, gates=gates)
    return table.gate_by_sigmoid(x, gates)


def _check(op: str, gate_up: torch.Tensor) -> None:
    require(gate_up.shape[-1] % 2 == 0, lambda: f"{op}: last dimension {gate_up.shape[-1]} is odd")
    require(gate_up.stride(-1) == 1, lambda: f"{op}: the last dimension must be contiguous")
