"""Activations and gates in C: one pass where PyTorch makes two, and no Python in a recorded step."""

import ctypes
from functools import cache
from typing import Literal

import torch

from penstock_kernels.base.activation import Activation
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run

Kind = Activation | Literal["clamped_swiglu", "soft_cap"]
# Numbers of the activations; mirrors src/activation.c.
_NUMBERS: dict[Kind, int] = {
    "silu": 0,
    "gelu": 1,
    "gelu_tanh": 2,
    "relu": 3,
    "relu2": 4,
    "clamped_swiglu": 5,
    "soft_cap": 6,
}


class _Call(ctypes.Structure):
    """`Activation` of src/activation.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "output")),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len")),
        *((name, ctypes.c_int32) for name in ("activation", "is_gated", "dtype", "num_threads", "max_lanes")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
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


def supports(x: torch.Tensor, *_: object) -> bool:
    """Whether `activate` can take these."""
    return x.dtype in DTYPES and x.dim() == 2 and _can_activate(x.shape[1])


def supports_gated(gate_up: torch.Tensor, *_: object, **__: object) -> bool:
    """Whether the gated ones can."""
    return gate_up.dtype in DTYPES and gate_up.dim() == 2 and _can_activate(gate_up.shape[1] // 2)


def activate(x: torch.Tensor, activation: Activation, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. A row's bits do not depend on the number of rows. `max_lanes`: see `paged_attention`."""
    return _activate(x, x.shape[1], activation, max_lanes=max_lanes)


def soft_cap(x: torch.Tensor, cap: float, max_lanes: int = 0) -> torch.Tensor:
    """See `activate`."""
    return _activate(x, x.shape[1], "soft_cap", limit=cap, max_lanes=max_lanes)


def silu_mul(gate_up: torch.Tensor, max_lanes: int = 0) -> torch.Tensor:
    """See `activate`."""
    return _activate(gate_up, gate_up.shape[1] // 2, "silu", max_lanes=max_lanes)


def gelu_mul(gate_up: torch.Tensor, tanh: bool = True, max_lanes: int = 0) -> torch.Tensor:
    """See `activate`."""
    return _activate(gate_up, gate_up.shape[1] // 2, "gelu_tanh" if tanh else "gelu", max_lanes=max_lanes)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float, max_lanes: int = 0) -> torch.Tensor:
    """See `activate`."""
    return _activate(gate_up, gate_up.shape[1] // 2, "clamped_swiglu", alpha, limit, max_lanes)


def _activate(
    x: torch.Tensor, length: int, activation: Kind, alpha: float = 0.0, limit: float = 0.0, max_lanes: int = 0
) -> torch.Tensor:
    """`length`: of a result; rows that are longer have gates first."""
    output = torch.empty(len(x), length, dtype=x.dtype)
    call = _Call(
        x.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        len(x),
        length,
        _NUMBERS[activation],
        length < x.shape[1],
        DTYPES[x.dtype],
        torch.get_num_threads() if output.numel() >= WORTH_THREADS else 1,
        max_lanes,
        alpha,
        limit,
    )
    run("penstock_activate", call, x, output)
    return output


def supports_gate(x: torch.Tensor, gates: torch.Tensor) -> bool:
    """Whether `gate_by_sigmoid` can take these, as the op has checked them."""
    return x.dtype in DTYPES and _can_activate(x.shape[1])


def gate_by_sigmoid(x: torch.Tensor, gates: torch.Tensor, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. A row's bits do not depend on the number of rows. `max_lanes`: see `paged_attention`."""
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
