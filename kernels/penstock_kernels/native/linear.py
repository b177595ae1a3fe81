"""Matrix products in C: for a few rows they take one read of the weights, where BLAS takes several times as long.

All weights of a 110M-parameter Llama, two threads of an AVX-512 processor, torch 2.13's time divided by ours for 1, 8,
16 and 128 rows: float32 2.0, 3.4, 2.6 and 1.4; bfloat16, multiplied in pairs of numbers, 2.0, 1.8, 1.5 and 0.9. What a
processor with tiles (AMX) takes is in docs/kernels.md.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run
from penstock_kernels.native.widen import widened

# Rows of a tile.
_SIDE = 16


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
        *((name, ctypes.c_int32) for name in ("num_rows", "dtype", "num_threads", "max_lanes", "is_paired")),
        ("packed", ctypes.c_void_p),
    )


@cache
def can_multiply(length: int) -> bool:
    """Whether rows of such a length are."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_multiply(ctypes.c_int64(length)))


def supports(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, invariant: bool
) -> bool:
    """Whether `linear` can take these rows, with weights of their type."""
    return x.dtype in DTYPES and can_multiply(x.shape[1])


@cache
def can_pair(length: int) -> bool:
    """Whether pairs of 16-bit floats are multiplied as they are, where rows have so many."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_pair(ctypes.c_int64(length)))


@cache
def has_amx() -> bool:
    """Whether they are multiplied in tiles of the processor (AMX)."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_has_amx())


def linear(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """The op in C, invariant or not."""
    return multiply(x, weights, bias)


def multiply(
    x: torch.Tensor, weights: Sequence[torch.Tensor], bias: torch.Tensor | None, max_lanes: int = 0
) -> torch.Tensor:
    """`x @ weight.T` for each, side by side, `+ bias`; a row has the same bits however many rows there are.

    `max_lanes` as in `paged_attention`.
    """
    is_paired = x.dtype == torch.bfloat16 and max_lanes == 0 and can_pair(x.shape[1])
    rows = x.contiguous() if is_paired else widened(x)
    parts, num_columns = _parts(weights)
    output = torch.empty(x.shape[0], num_columns, dtype=x.dtype)
    packed = _packed(rows) if is_paired and has_amx() else None
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
        torch.get_num_threads() if num_columns * x.numel() >= WORTH_THREADS else 1,
        max_lanes,
        is_paired,
        None if packed is None else packed.data_ptr(),
    )
    run("penstock_multiply", call, rows, packed, parts, weights, bias, output)
    return output


def _packed(rows: torch.Tensor) -> torch.Tensor:
    """Memory for rows in tiles: whole ones of so many rows, or a narrow one."""
    num_rows, length = rows.shape
    num_packed = num_rows if num_rows < _SIDE else -(-num_rows // _SIDE) * _SIDE
    return torch.empty(num_packed, length, dtype=rows.dtype)


def _parts(weights: Sequence[torch.Tensor]) -> tuple[ctypes.Array[_Part], int]:
    """The weights as C takes them, and how many columns they have together."""
    parts = (_Part * len(weights))()
    first = 0
    for part, weight in zip(parts, weights, strict=True):
        part.weight, part.stride, part.first = weight.data_ptr(), weight.stride(0), first
        part.num_columns = weight.shape[0]
        first += weight.shape[0]
    return parts, first
