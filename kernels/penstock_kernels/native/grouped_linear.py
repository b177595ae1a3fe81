"""Rows times the matrix of their group in C: of the expert that a token chose, or of the head that a row is of.

Which rows a group has is found there, so that a decode step can be recorded. A row has the same bits whatever the
others are.
"""

import ctypes

import torch

from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.native import linear
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, run


class _Call(ctypes.Structure):
    """`Grouped` of src/grouped_linear.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "groups", "weight", "bias", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "output_stride", "num_rows")),
        *((name, ctypes.c_int64) for name in ("num_groups", "first_group", "total_groups")),
        *((name, ctypes.c_int64) for name in ("len", "num_columns")),
        *((name, ctypes.c_int32) for name in ("repeats", "dtype", "num_threads", "max_lanes")),
        *((name, ctypes.c_int32) for name in ("is_paired", "has_amx")),
    )


def grouped_linear(
    x: torch.Tensor,
    groups: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    max_lanes: int = 0,
    output: torch.Tensor | None = None,
    part: ExpertPart | None = None,
) -> torch.Tensor:
    """`x[i // repeats] @ weight[groups[i]].T + bias[groups[i]]` for each row i.

    x: [num_rows / repeats, len], rows of it may lie apart; groups: [num_rows] int64, None for all groups in turn, again
    and again, with a row of x for each; weight: [num_groups, num_columns, len] and bias [num_groups, num_columns],
    contiguous. `max_lanes` as in `paged_attention`. `output`: where the result is to be, rows of it may lie apart.
    `part`: which of all groups these are; a row of another becomes zeros.
    """
    num_groups, num_columns, length = weight.shape
    num_rows = len(x) if groups is None else len(groups)
    if output is None:
        output = torch.empty(num_rows, num_columns, dtype=x.dtype)
    first, total = part or ExpertPart(0, num_groups)
    is_paired = x.dtype == torch.bfloat16 and max_lanes == 0 and linear.can_pair(length)
    call = _Call(
        x.data_ptr(),
        None if groups is None else groups.data_ptr(),
        weight.data_ptr(),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        output.stride(0),
        num_rows,
        num_groups,
        first,
        total,
        length,
        num_columns,
        num_rows // max(len(x), 1),
        DTYPES[x.dtype],
        torch.get_num_threads() if output.numel() * length >= WORTH_THREADS else 1,
        max_lanes,
        is_paired,
        is_paired and linear.has_amx(),
    )
    kept = (x, groups, weight, bias, output)
    run("penstock_multiply_grouped", call, *kept, failure=_failure)
    return output


def _failure() -> Exception:
    return MemoryError("no memory for the rows of groups, or a row of no group")
