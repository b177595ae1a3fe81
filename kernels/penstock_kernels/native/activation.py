"""Gated activations and gates in C: one pass where PyTorch makes two, and no Python in a recorded step."""

import ctypes
from functools import cache
from typing import Literal

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run

Activation = Literal["silu", "gelu_tanh"]
# As in src/activation.c.
_NUMBERS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


class _Call(ctypes.Structure):
    """`Activation` of src/activation.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate_up", "output")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len")),
        *((name, ctypes.c_int32) for name in ("activation", "dtype", "num_threads", "max_lanes")),
    )


class _Gate(ctypes.Structure):
    """`Gate` of src/activation.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "gates")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len")),
        *((name, ctypes.c_int32) for name in ("is_shared", "dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_activate(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_activate(ctypes.c_int64(length)))


def supports(gate_up: torch.Tensor, tanh: bool = True) -> bool:
    """Whether `silu_mul` and `gelu_mul` can take these; the exact gelu is not here."""
    return tanh and gate_up.dtype in DTYPES and gate_up.dim() == 2 and _can_activate(gate_up.shape[1] // 2)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As the op."""
    return activate(gate_up, "silu")


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True) -> torch.Tensor:
    """As the op."""
    assert tanh, "the row of the table asks `supports`"
    return activate(gate_up, "gelu_tanh")


def activate(gate_up: torch.Tensor, activation: Activation, max_lanes: int = 0) -> torch.Tensor:
    """As the ops; a row has the same bits however many rows there are. `max_lanes` as in `paged_attention`."""
    num_rows, length = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty(num_rows, length, dtype=gate_up.dtype)
    call = _Call(
        gate_up.data_ptr(),
        output.data_ptr(),
        gate_up.stride(0),
        num_rows,
        length,
        _NUMBERS[activation],
        DTYPES[gate_up.dtype],
        torch.get_num_threads() if output.numel() >= WORTH_THREADS else 1,
        max_lanes,
    )
    run("penstock_activate", call, gate_up, output)
    return output


def supports_gate(x: torch.Tensor, gates: torch.Tensor) -> bool:
    """Whether `gate_by_sigmoid` can take these, as the op has checked them."""
    return x.dtype in DTYPES and _can_activate(x.shape[1])


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor, max_lanes: int = 0) -> torch.Tensor:
    """As the op; a row has the same bits however many rows there are. `max_lanes` as in `paged_attention`."""
    call = _Gate(
        x.data_ptr(),
        gates.data_ptr(),
        gates.stride(0),
        *x.shape,
        gates.shape[1] < x.shape[1],
        DTYPES[x.dtype],
        torch.get_num_threads() if x.numel() >= WORTH_THREADS else 1,
        max_lanes,
    )
    run("penstock_gate", call, x, gates)
    return x
