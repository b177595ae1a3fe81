"""Norms in C: otherwise several small ops of PyTorch in a decode step."""

import ctypes
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`Norm` of src/norm.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "residual", "weight", "bias", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "head_stride", "num_rows", "num_heads", "len")),
        *((name, ctypes.c_int32) for name in ("is_centered", "dtype", "num_threads", "max_lanes")),
        *((name, ctypes.c_float) for name in ("eps", "offset")),
    )


@cache
def _can_norm(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_norm(ctypes.c_int64(length)))


def supports(x: torch.Tensor, weight: torch.Tensor, *_: object) -> bool:
    """Whether `rms_norm` and `layer_norm` can take these: rows, or heads with weights of their own."""
    return x.dtype in DTYPES and x.dim() in (2, 3) and weight.dim() == x.dim() - 1 and _can_norm(x.shape[-1])


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    weight_offset: float,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A row's bits do not depend on the number of rows. `max_lanes`: see `paged_attention`."""
    return _norm(x, weight, None, eps, residual, weight_offset, False, max_lanes)


def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    max_lanes: int = 0,
) -> torch.Tensor:
    """See `rms_norm`."""
    return _norm(x, weight, bias, eps, residual, 0.0, True, max_lanes)


def _norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    weight_offset: float,
    is_centered: bool,
    max_lanes: int,
) -> torch.Tensor:
    output = torch.empty(x.shape, dtype=x.dtype)
    num_heads = weight.shape[0] if weight.dim() == 2 else 1
    call = _Call(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        x.stride(-2),
        x.shape[0] * num_heads,
        num_heads,
        x.shape[-1],
        is_centered,
        DTYPES[x.dtype],
        torch.get_num_threads() if x.numel() >= WORTH_THREADS else 1,
        max_lanes,
        eps,
        weight_offset,
    )
    run("penstock_norm", call, x, residual, weight, bias, output)
    return output
