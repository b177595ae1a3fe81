"""Norms with gates in C: otherwise eight small ops of PyTorch in a decode step."""

import ctypes
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`GatedNorm` of src/gated_norm.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "gate", "weight", "output")),
        *((name, ctypes.c_int64) for name in ("gate_stride", "weight_stride", "num_rows")),
        *((name, ctypes.c_int32) for name in ("num_groups", "len", "gate_first", "has_silu")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
        ("eps", ctypes.c_float),
    )


@cache
def _can_norm(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_norm_gated(length))


def supports(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *_: object) -> bool:
    """Whether `gated_norm` can take these, as the op has checked them."""
    return (
        x.dtype in DTYPES
        and x.is_contiguous()
        and gate.stride(1) == 1
        and weight.is_contiguous()
        and _can_norm(x.shape[2])
    )


def gated_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    gate_first: bool,
    has_silu: bool = True,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A row's bits do not depend on the number of rows. `max_lanes`: see `paged_attention`."""
    output = torch.empty(gate.shape, dtype=x.dtype)
    call = _Call(
        x.data_ptr(),
        gate.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        gate.stride(0),
        weight.stride(0) if weight.dim() == 2 else 0,
        *x.shape,
        gate_first,
        has_silu,
        DTYPES[x.dtype],
        torch.get_num_threads() if x.numel() >= WORTH_THREADS else 1,
        max_lanes,
        eps,
    )
    run("penstock_norm_gated", call, x, gate, weight, output)
    return output
