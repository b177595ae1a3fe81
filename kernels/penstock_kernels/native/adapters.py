"""Low-rank adapters in C: each row reads the matrices of its own adapter, and rows are divided among threads."""

import ctypes
from functools import cache

import torch

from penstock_kernels.base.adapter_rows import AdapterRows
from penstock_kernels.base.adapter_table import AdapterTable
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run

# A row's work is some multiple of its inputs and outputs.
_WORTH_THREADS = WORTH_THREADS // 2


class _Call(ctypes.Structure):
    """`Adapt` of src/adapters.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("output", "x", "numbers", "table")),
        *((name, ctypes.c_int64) for name in ("x_stride", "num_rows", "len", "num_columns")),
        *((name, ctypes.c_int32) for name in ("dtype", "num_threads", "max_lanes")),
    )


@cache
def _can_adapt(length: int) -> bool:
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_adapt(ctypes.c_int64(length)))


def supports(output: torch.Tensor, x: torch.Tensor, *_: object) -> bool:
    """Whether `add_adapters` can take these, as the op has checked them."""
    return output.dtype in DTYPES and _can_adapt(x.shape[1])


def add_adapters(
    output: torch.Tensor, x: torch.Tensor, rows: AdapterRows, adapters: AdapterTable, max_lanes: int = 0
) -> torch.Tensor:
    """The op in C. `max_lanes`: see `paged_attention`."""
    call = _Call(
        output.data_ptr(),
        x.data_ptr(),
        rows.numbers.data_ptr(),
        adapters.words.data_ptr(),
        x.stride(0),
        *x.shape,
        output.shape[1],
        DTYPES[x.dtype],
        torch.get_num_threads() if output.numel() + x.numel() >= _WORTH_THREADS else 1,
        max_lanes,
    )
    run("penstock_adapt", call, output, x, rows, adapters, failure=MemoryError)
    return output
