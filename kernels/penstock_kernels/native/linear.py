"""Rows times a matrix in C: a few rows cost one read of the weights, where BLAS takes several times that."""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run


class _Part(ctypes.Structure):
    """`Part` of src/linear.c, field by field."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "num_columns", "first")),
    )


class _Call(ctypes.Structure):
    """`Linear` of src/linear.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "parts", "bias", "output")),
        *((name, ctypes.c_int64) for name in ("num_parts", "len", "num_columns")),
        *((name, ctypes.c_int32) for name in ("num_rows", "dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_multiply(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_multiply(ctypes.c_int64(length)))


def supports(x: torch.Tensor) -> bool:
    """Whether `multiply` can take these rows, with weights of their type."""
    return x.device.type == "cpu" and x.dtype in DTYPES and _can_multiply(x.shape[1])


@cache
def pays(dtype: torch.dtype) -> bool:
    """Whether this is faster than torch, by measurement.

    One thread of an AVX-512 processor, 1024 x 6144 from memory, processor time of torch 2.13 over ours. float32, 1, 2,
    8, 32, 128 and 512 rows: 1.1, 1.8, 2.3, 1.9, 1.4, 1.2; 768 x 2304: 0.8, 1.7, 1.2, 1.1, 1.1, 1.0. bfloat16 with the
    processor's own bfloat16 products: 0.7, 0.7, 0.7, 0.5, 0.4, 0.4; without them torch was measured at seven times its
    float32 for 64 rows.
    """
    compiled = library()
    return compiled is not None and (dtype == torch.float32 or not compiled.penstock_multiplies_bfloat16())


def multiply(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, max_lanes: int = 0
) -> torch.Tensor:
    """`x @ weight.T` for each, side by side, `+ bias`; a row has the same bits however many there are.

    `max_lanes` as in `attend`.
    """
    rows = x.float().contiguous()
    parts, num_columns = _parts(weights)
    output = torch.empty(x.shape[0], num_columns, dtype=x.dtype)
    call = _Call(
        rows.data_ptr(),
        ctypes.addressof(parts),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        len(parts),
        x.shape[1],
        num_columns,
        x.shape[0],
        DTYPES[x.dtype],
        torch.get_num_threads() if num_columns * x.numel() >= 2 * WORTH_THREADS else 1,
        max_lanes,
    )
    run("penstock_multiply", call, rows, parts, weights, bias, output)
    return output


def _parts(weights: Sequence[torch.Tensor]) -> tuple[ctypes.Array[_Part], int]:
    """As the library wants them, and how many columns they have together."""
    parts = (_Part * len(weights))()
    first = 0
    for part, weight in zip(parts, weights, strict=True):
        part.weight, part.stride, part.first = weight.data_ptr(), weight.stride(0), first
        part.num_columns = weight.shape[0]
        first += weight.shape[0]
    return parts, first
