"""Activations of a feed-forward layer, gated or not, and gates of what a layer found."""

import torch
import torch.nn.functional as F

from penstock_kernels.base.activation import Activation


def activate(x: torch.Tensor, activation: Activation) -> torch.Tensor:
    match activation:
        case "silu":
            return F.silu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "relu":
            return F.relu(x)
        case "relu2":
            return F.relu(x).square_()


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    return (x / cap).tanh_().mul_(cap)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh" if tanh else "none").mul_(up)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * alpha).sigmoid_().mul_(gate).mul_(up + 1)


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    return x.mul_(gates.sigmoid())
