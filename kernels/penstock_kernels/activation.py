"""Gated activations of a feed-forward layer."""

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require
from penstock_kernels.dispatch import runs_kernel
from penstock_kernels.native import activation as native


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return `silu(gate) * up`.

    gate_up: [..., 2 * dim], gate first, as one fused projection leaves them. Result: [..., dim].
    """
    _check("silu_mul", gate_up)
    if runs_kernel(gate_up):
        return _activate(gate_up, "silu")
    return native.activate(gate_up, "silu") if native.supports(gate_up) else reference.silu_mul(gate_up)


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True) -> torch.Tensor:
    """Return `gelu(gate) * up`, with the tanh approximation or exact. Shapes as in `silu_mul`."""
    _check("gelu_mul", gate_up)
    if runs_kernel(gate_up):
        return _activate(gate_up, "gelu_tanh" if tanh else "gelu")
    if tanh and native.supports(gate_up):
        return native.activate(gate_up, "gelu_tanh")
    return reference.gelu_mul(gate_up, tanh)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float = 1.702, limit: float = 7.0) -> torch.Tensor:
    """Return `gate * sigmoid(alpha * gate) * (up + 1)`, gate at most `limit`, up within it. Shapes as in `silu_mul`."""
    _check("clamped_swiglu", gate_up)
    if runs_kernel(gate_up):
        return _activate(gate_up, "clamped_swiglu", alpha, limit)
    return reference.clamped_swiglu(gate_up, alpha, limit)


def _activate(gate_up: torch.Tensor, activation: str, *options: float) -> torch.Tensor:
    from penstock_kernels.gpu.activation import gated_activation

    return gated_activation(gate_up, activation, *options)


def _check(op: str, gate_up: torch.Tensor) -> None:
    require(gate_up.shape[-1] % 2 == 0, lambda: f"{op}: last dimension {gate_up.shape[-1]} is odd")
    require(gate_up.stride(-1) == 1, lambda: f"{op}: the last dimension must be contiguous")
