"""Products with weights of few bits in C: codes are read once, as they are stored, and become floats in registers."""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import torch

from penstock_kernels import reference
from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.base.quantized import (
    INPUT_BLOCK,
    Float8Grid,
    IntGroups,
    Matrix,
    Quantized,
    TableBlocks,
)
from penstock_kernels.native import linear
from penstock_kernels.native.grouped_mlp import multiply as multiply_floats
from penstock_kernels.native.library import DTYPES, WORTH_THREADS, library, run

# Kinds of codes and types of scales; mirrors src/quantized.h.
_CODES_4, _CODES_8, _SIGNED_8, _ENTRIES_4, _FLOATS_8, _OTHERS = range(6)
_SCALES = {**DTYPES, torch.float16: 2, torch.float8_e4m3fn: 3, torch.float8_e8m0fnu: 4}
# Rows of x are padded to whole steps of the widest vectors.
_STEP = 64
# Rows of a tile of the processor, and rows from which on tiles are faster.
_SIDE, _WORTH_TILES = 16, 8
# Bytes of a block of a rounded row: one digit of its numbers, with a scale and a sum, see src/rounded.c.
_BLOCK_BYTES = 40


class _Part(ctypes.Structure):
    """`Part` of src/quantized.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "zeros", "table", "tensor_scale")),
        ("group_of_column", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("stride", "scale_stride", "zero_stride", "columns_per_scale")),
        *((name, ctypes.c_int64) for name in ("first_in_scale", "num_columns", "first")),
        ("offsets", ctypes.c_void_p),
        ("offset_stride", ctypes.c_int64),
    )


class _Call(ctypes.Structure):
    """`Quantized` of src/quantized.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "rows", "parts", "bias", "output")),
        *((name, ctypes.c_int64) for name in ("x_stride", "num_parts", "len", "padded_len", "num_columns")),
        *((name, ctypes.c_int64) for name in ("group_size", "first_in_group")),
        *((name, ctypes.c_int32) for name in ("num_rows", "dtype", "kind", "bits", "zero", "is_high_first")),
        *((name, ctypes.c_int32) for name in ("scale_dtype", "num_threads", "max_lanes", "has_amx")),
        ("digits", ctypes.c_int32),
    )


def supports(x: torch.Tensor, parts: tuple[Quantized, ...], *_: object) -> bool:
    """Whether products can be in C."""
    return can_multiply(x) and all(map(_rounds_as_c, parts))


def supports_experts(
    x: torch.Tensor, ids: object, weights: object, gate_up: tuple[tuple[Matrix, ...], ...], *_: object
) -> bool:
    """Whether experts can be in C. What is asked of rows is the same for all."""
    return can_multiply(x) and all(map(_rounds_as_c, gate_up[0] if gate_up else ()))


def can_multiply(x: torch.Tensor) -> bool:
    """Whether products of such rows are compiled."""
    return x.dtype in DTYPES and library() is not None


def _rounds_as_c(part: Matrix) -> bool:
    if isinstance(part, Float8Grid):
        return part.input_bits == 0
    return not isinstance(part, IntGroups) or part.input_block == INPUT_BLOCK


@cache
def prefers_rounded() -> bool:
    """Whether rows of bfloat16 that are rounded to int16 are expected to be multiplied faster."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_prefers_rounded())


def quantized_linear(
    x: torch.Tensor, parts: tuple[Quantized, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """The op in C, invariant or not."""
    return multiply(x, parts, bias, is_tiled=not invariant)


def multiply(
    x: torch.Tensor,
    parts: Sequence[Quantized],
    bias: torch.Tensor | None,
    max_lanes: int = 0,
    is_tiled: bool = False,
) -> torch.Tensor:
    """`x @ weight.T` for parts of one kind, side by side, `+ bias`; a row has the same bits among any others.

    `max_lanes` as in `paged_attention`. `is_tiled`: many rows may be multiplied in the processor's tiles (AMX), and
    then have other bits than among few.
    """
    num_rows, length = x.shape
    its_parts, num_columns = _parts(parts)
    has_amx = is_tiled and num_rows >= _WORTH_TILES and x.dtype == torch.bfloat16 and linear.has_amx()
    padded, rows = _memory(parts[0], num_rows, has_amx)
    output = torch.empty(num_rows, num_columns, dtype=x.dtype)
    call = _Call(
        x.data_ptr(),
        rows.data_ptr(),
        ctypes.addressof(its_parts),
        None if bias is None else bias.data_ptr(),
        output.data_ptr(),
        x.stride(0),
        len(its_parts),
        length,
        padded,
        num_columns,
        *_groups(parts[0]),
        num_rows,
        DTYPES[x.dtype],
        *_codes(parts[0]),
        _SCALES[parts[0].scales.dtype],
        torch.get_num_threads() if num_columns * x.numel() >= WORTH_THREADS else 1,
        max_lanes,
        has_amx,
        _digits(parts[0]),
    )
    op = "penstock_multiply_rounded" if _digits(parts[0]) else "penstock_multiply_quantized"
    run(op, call, x, rows, its_parts, parts, bias, output)
    return output


def _digits(matrix: Quantized) -> int:
    """Digits of 8 bits of the whole numbers that rows are rounded to; 0: rows are not rounded."""
    return matrix.input_bits // 8 if isinstance(matrix, IntGroups) else 0


def _memory(matrix: Quantized, num_rows: int, has_amx: bool) -> tuple[int, torch.Tensor]:
    """`padded_len` of src/quantized.h and what `rows` points to."""
    if not isinstance(matrix, IntGroups) or not matrix.input_bits:
        padded = -(-matrix.in_features // _STEP) * _STEP
        # Rows of 16 bits take half of it, and with those of the last tile they are there once more.
        num_rows += _SIDE // 2 if has_amx else 0
        return padded, torch.empty(num_rows, padded, dtype=torch.float32)
    num_bytes = _num_blocks(matrix) * _BLOCK_BYTES
    # One row more, for the groups of the blocks, which are the same for all rows.
    return num_bytes, torch.empty(num_rows * _digits(matrix) + 1, num_bytes // 4, dtype=torch.float32)


def _num_blocks(matrix: IntGroups) -> int:
    """The number of blocks that `input_blocks` has."""
    end = matrix.first + matrix.in_features
    if end <= matrix.group_size:
        return -(-matrix.in_features // INPUT_BLOCK)
    of_group = -(-matrix.group_size // INPUT_BLOCK)
    last = (end - 1) // matrix.group_size * of_group + (end - 1) % matrix.group_size // INPUT_BLOCK
    return last - matrix.first // INPUT_BLOCK + 1


def _parts(parts: Sequence[Quantized]) -> tuple[ctypes.Array[_Part], int]:
    """The parts as C takes them, and how many columns they have together."""
    made = (_Part * len(parts))()
    first = 0
    for part, to in zip(parts, made, strict=True):
        to.codes, to.stride = part.codes.data_ptr(), part.codes.stride(0)
        to.scales, to.scale_stride = part.scales.data_ptr(), part.scales.stride(0)
        to.columns_per_scale, to.num_columns, to.first = 1, part.out_features, first
        first += part.out_features
        if isinstance(part, IntGroups):
            if part.zeros is not None:
                to.zeros, to.zero_stride = part.zeros.data_ptr(), part.zeros.stride(0)
            if part.offsets is not None:
                to.offsets, to.offset_stride = part.offsets.data_ptr(), part.offsets.stride(0)
            if part.group_of_column is not None:
                to.group_of_column = part.group_of_column.data_ptr()
        elif isinstance(part, Float8Grid):
            to.columns_per_scale, to.first_in_scale = part.block_rows, part.first_row
        else:
            to.table = part.table.data_ptr()
            to.tensor_scale = None if part.tensor_scale is None else part.tensor_scale.data_ptr()
    return made, first


def _groups(matrix: Quantized) -> tuple[int, int]:
    """The inputs of one scale, and those of the first scale that belong to other parts."""
    return matrix.groups


def _codes(matrix: Quantized) -> tuple[int, int, int, bool]:
    """The kind of the codes, their bits, the zero of matrices without zeros, and whether the first of two is in the
    high bits."""
    if isinstance(matrix, Float8Grid):
        return _FLOATS_8, 8, 0, False
    if isinstance(matrix, TableBlocks):
        return _ENTRIES_4, 4, 0, not matrix.low_first
    if matrix.is_signed:
        return _SIGNED_8, 8, 0, False
    kinds = {4: _CODES_4, 8: _CODES_8}
    return kinds.get(matrix.bits, _OTHERS), matrix.bits, matrix.usual_zero, False


def quantized_grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: tuple[tuple[Matrix, ...], ...],
    down: tuple[Matrix, ...],
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    invariant: bool,
    part: ExpertPart | None = None,
) -> torch.Tensor:
    """The reference of the op, with products in C."""
    biases = gate_up_bias, down_bias
    return reference.quantized_grouped_mlp(
        x, expert_ids, expert_weights, gate_up, down, activate, *biases, invariant, part, _multiply
    )


def _multiply(
    x: torch.Tensor, parts: tuple[Matrix, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """Parts of one kind as one product, others one by one."""
    alike = tuple(part for part in parts if not isinstance(part, torch.Tensor))
    if len(alike) == len(parts) and len({part.kind for part in alike}) == 1:
        return multiply(x, alike, bias, is_tiled=not invariant)
    if isinstance(parts[0], torch.Tensor) and len(parts) == 1:
        return multiply_floats(x, (parts[0],), bias, invariant)
    biases = [None] * len(parts) if bias is None else torch.split(bias, [part.shape[0] for part in parts])
    products = [_multiply(x, (part,), its, invariant) for part, its in zip(parts, biases, strict=True)]
    return torch.cat(products, dim=1)
