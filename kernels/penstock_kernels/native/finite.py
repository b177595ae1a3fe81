"""Whether all numbers are finite, in C: one pass over the bits, as fast as memory can be read."""

import ctypes

import torch

from penstock_kernels.native.library import WORTH_THREADS, library, run

# Bytes of a number, and the bits of infinity.
_FORMATS = {torch.float32: (4, 0x7F800000), torch.bfloat16: (2, 0x7F80), torch.float16: (2, 0x7C00)}


class _Call(ctypes.Structure):
    """`Finite` of src/finite.c, field by field."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "num_rows", "len")),
        ("size", ctypes.c_int32),
        ("infinity", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("num_threads", "is_finite")),
    )


def supports(x: torch.Tensor) -> bool:
    """Whether `all_finite` can take it: rows of contiguous, aligned numbers."""
    return (
        x.dtype in _FORMATS
        and (x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1))
        and x.data_ptr() % x.element_size() == 0
        and library() is not None
    )


def all_finite(x: torch.Tensor) -> bool:
    """The op in C."""
    rows = x.view(1, -1) if x.is_contiguous() else x
    call = _Call(
        x.data_ptr(),
        rows.stride(0),
        *rows.shape,
        *_FORMATS[x.dtype],
        torch.get_num_threads() if x.numel() >= WORTH_THREADS else 1,
        1,
    )
    run("penstock_check_finite", call, x)
    return bool(call.is_finite)
