"""The root-mean-square norm in C: otherwise six small ops of PyTorch in a decode step."""

import ctypes
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Call(ctypes.Structure):
    """`Norm` of src/norm.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "residual", "weight", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "num_rows", "len")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
        *((name, ctypes.c_float) for name in ("eps", "offset")),
    )


@cache
def _can_norm(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_norm(ctypes.c_int64(length)))


def supports(x: torch.Tensor, weight: torch.Tensor, *_: object) -> bool:
    """Whether `rms_norm` can take these, as the op has checked them."""
    return x.dtype in DTYPES and x.dim() == 2 and weight.dim() == 1 and _can_norm(x.shape[1])


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None,
    weight_offset: float,
    max_lanes: int = 0,
) -> torch.Tensor:
    """As the op; a row has the same bits however many rows there are. `max_lanes` as in `paged_attention`."""
    output = torch.empty(x.shape, dtype=x.dtype)
    call = _Call(
        x.data_ptr(),
        None if residual is None else residual.data_ptr(),
        weight.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        *x.shape,
        DTYPES[x.dtype],
        torch.get_num_threads() if x.numel() >= WORTH_THREADS else 1,
        max_lanes,
        eps,
        weight_offset,
    )
    run("penstock_norm", call, x, residual, weight, output)
    return output
