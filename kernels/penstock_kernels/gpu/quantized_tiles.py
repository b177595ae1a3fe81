"""Weights of few bits in tiles, for every kernel that multiplies by them: how a matrix lies, and the sum of products.

A tile of codes becomes floats of the type of x, and the matrix units multiply it. Two codes of a byte go into two
tiles; the numbers of x at even and odd places are multiplied by one each. Where x has 8 bits, too, the units multiply
codes as they are, and each product of a tile is scaled.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.quantized import (
    Float8Grid,
    Groups,
    IntGroups,
    Quantized,
    TableBlocks,
    gpu_input_block,
    rounds_inputs,
)
from penstock_kernels.gpu.tiles import FEW_ROWS, SplitTile

# The fewest inputs of a tile: a matrix unit takes 16, and a byte may have two.
_SHORTEST = 32


@triton.jit
def _float8(code):
    """A float of 8 bits from its bits: as a float of 16 bits it is 2^8 times smaller."""
    bits = code.to(tl.int16)
    size = bits & 0x7F
    number = ((size << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(size == 0x7F, float("nan"), number)


@triton.jit
def _scales(ptrs, mask, tensor_scale_ptr, SCALE: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr):
    stored = tl.load(ptrs, mask=mask, other=0)
    if SCALE == "float8":
        scale = _float8(stored)
    elif SCALE == "power":
        power = (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        scale = tl.where(stored == 255, float("nan"), power)
    else:
        scale = stored.to(tl.float32)
    if HAS_TENSOR_SCALE:
        scale *= tl.load(tensor_scale_ptr)
    return scale


@triton.jit
def _repeated(x, COLUMNS: tl.constexpr, COUNT: tl.constexpr, LENGTH: tl.constexpr):
    """[COLUMNS, COUNT], each number for the LENGTH // COUNT neighbours of a group."""
    repeated = x
    if COUNT != 1:
        wide = tl.broadcast_to(x[:, :, None], [COLUMNS, COUNT, LENGTH // COUNT])
        repeated = tl.reshape(wide, [COLUMNS, LENGTH])
    return repeated


@triton.jit
def _numbers(code, zero, table, KIND: tl.constexpr):
    if KIND == "table":
        number = tl.gather(table, code.to(tl.int32), axis=1)
    elif KIND == "float8":
        number = _float8(code)
    else:
        number = code.to(tl.float32) - zero
    return number


@triton.jit
def _weights(code, zero, table, scale, offset, KIND: tl.constexpr, HAS_OFFSETS: tl.constexpr):
    weight = _numbers(code, zero, table, KIND) * scale
    if HAS_OFFSETS:
        weight += offset
    return weight


@triton.jit
def _tiles(x_rows, code_rows, is_row, is_column, begin, FIRST: tl.constexpr, LENGTH: tl.constexpr,
           PER_BYTE: tl.constexpr, BLOCK_LENGTH: tl.constexpr):  # fmt: skip
    """Inputs and codes of a tile. `begin` is counted from the begin of the first group."""
    at = begin - FIRST + tl.arange(0, BLOCK_LENGTH)
    byte = (begin - FIRST) // PER_BYTE + tl.arange(0, BLOCK_LENGTH // PER_BYTE)
    x_mask, code_mask = is_row[:, None], is_column[:, None]
    if FIRST != 0 or LENGTH % BLOCK_LENGTH != 0:
        x_mask = x_mask & ((at >= 0) & (at < LENGTH))[None, :]
        code_mask = code_mask & ((byte >= 0) & (byte < (LENGTH + PER_BYTE - 1) // PER_BYTE))[None, :]
    x = tl.load(x_rows + at[None, :], mask=x_mask, other=0.0)
    return x, tl.load(code_rows + byte[None, :], mask=code_mask, other=0)


@triton.jit
def _of_groups(scale_rows, zero_rows, offset_rows, tensor_scale_ptr, is_column, begin, GROUP: tl.constexpr,
               NUM_GROUPS: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr,
               HAS_ZEROS: tl.constexpr, HAS_OFFSETS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
               BLOCK_LENGTH: tl.constexpr, CODES: tl.constexpr):  # fmt: skip
    """Scale, zero and offset of every code of a tile; one number for all where they have none of their own."""
    SCALES: tl.constexpr = 1 if BLOCK_LENGTH < GROUP else BLOCK_LENGTH // GROUP
    group = begin // GROUP + tl.arange(0, SCALES)[None, :]
    mask = is_column[:, None] & (group < NUM_GROUPS)
    scale = _scales(scale_rows + group, mask, tensor_scale_ptr, SCALE, HAS_TENSOR_SCALE)
    scale = _repeated(scale, BLOCK_COLUMNS, SCALES, CODES)
    zero = ZERO
    if HAS_ZEROS:
        zero = tl.load(zero_rows + group, mask=mask, other=0).to(tl.float32)
        zero = _repeated(zero, BLOCK_COLUMNS, SCALES, CODES)
    offset = 0.0
    if HAS_OFFSETS:
        offset = tl.load(offset_rows + group, mask=mask, other=0).to(tl.float32)
        offset = _repeated(offset, BLOCK_COLUMNS, SCALES, CODES)
    return scale, zero, offset


@triton.jit
def _multiplied(total, x, codes, zero, table, scale, offset, KIND: tl.constexpr, HAS_OFFSETS: tl.constexpr,
                IS_PACKED: tl.constexpr, IS_HIGH_FIRST: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                CODES: tl.constexpr):  # fmt: skip
    """The sum so far and a tile's product."""
    if IS_PACKED:
        low = _weights(codes & 15, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        high = _weights(codes >> 4, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        even, odd = tl.split(tl.reshape(x, [BLOCK_ROWS, CODES, 2]))
        total = tl.dot(odd if IS_HIGH_FIRST else even, tl.trans(low), total, input_precision="ieee")
        total = tl.dot(even if IS_HIGH_FIRST else odd, tl.trans(high), total, input_precision="ieee")
    else:
        weight = _weights(codes, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    return total


@triton.jit
def _as_code(byte, KIND: tl.constexpr, ZERO: tl.constexpr):
    """A weight of 8 bits, as the matrix units take it."""
    if KIND == "float8":
        code = byte.to(tl.uint8, bitcast=True).to(tl.float8e4nv, bitcast=True)
    elif ZERO != 0:
        code = (byte ^ ZERO).to(tl.int8, bitcast=True)
    else:
        code = byte
    return code


@triton.jit
def _scaled_product(total, x, codes, x_scale_rows, tile, scale, is_row, KIND: tl.constexpr, ZERO: tl.constexpr,
                    BLOCK_COLUMNS: tl.constexpr):  # fmt: skip
    """The sum so far and the product of a tile of codes of 8 bits, in which rows and columns have one scale each."""
    x_scale = tl.load(x_scale_rows + tile, mask=is_row, other=0.0)
    weights = tl.trans(_as_code(codes, KIND, ZERO))
    # Each product is summed apart: the matrix units of Hopper keep few bits of a long sum of floats.
    product = tl.dot(x, weights, out_dtype=tl.float32 if KIND == "float8" else tl.int32).to(tl.float32)
    return total + product * x_scale[:, None] * tl.reshape(scale, [1, BLOCK_COLUMNS])


@triton.jit
def add_products(
    total, x_rows, x_scale_rows, code_rows, scale_rows, zero_rows, offset_rows, table, tensor_scale_ptr, is_row,
    is_column, first_tile, end_tile, IS_ROUNDED: tl.constexpr, LENGTH: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr, KIND: tl.constexpr, IS_PACKED: tl.constexpr, IS_HIGH_FIRST: tl.constexpr,
    ZERO: tl.constexpr, SCALE: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr,
    NUM_GROUPS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_LENGTH: tl.constexpr,
):  # fmt: skip
    """The sum so far and the products of some tiles of the length, counted from the begin of its first group."""
    PER_BYTE: tl.constexpr = 2 if IS_PACKED else 1
    CODES: tl.constexpr = BLOCK_LENGTH // PER_BYTE
    for tile in range(first_tile, end_tile):
        begin = tile * BLOCK_LENGTH
        x, codes = _tiles(x_rows, code_rows, is_row, is_column, begin, FIRST, LENGTH, PER_BYTE, BLOCK_LENGTH)
        scale, zero, offset = _of_groups(
            scale_rows, zero_rows, offset_rows, tensor_scale_ptr, is_column, begin, GROUP, NUM_GROUPS, SCALE, ZERO,
            HAS_TENSOR_SCALE, HAS_ZEROS, HAS_OFFSETS, BLOCK_COLUMNS, BLOCK_LENGTH, CODES)  # fmt: skip
        if IS_ROUNDED:
            total = _scaled_product(total, x, codes, x_scale_rows, tile, scale, is_row, KIND, ZERO,
                                    BLOCK_COLUMNS)  # fmt: skip
        else:
            total = _multiplied(total, x, codes, zero, table, scale, offset, KIND, HAS_OFFSETS, IS_PACKED,
                                IS_HIGH_FIRST, BLOCK_ROWS, CODES)  # fmt: skip
    return total


@triton.jit
def table_of(table_ptr, KIND: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """The numbers that codes name, for every column; 0 where codes are numbers."""
    table = 0
    if KIND == "table":
        table = tl.broadcast_to(tl.load(table_ptr + tl.arange(0, 16))[None, :], [BLOCK_COLUMNS, 16])
    return table


# The group of a row with one scale: it begins with the row, and is as long as any tile.
_ONE_GROUP = Groups(1 << 30, 0)


# How scales of 8 bits are read; others are floats.
_KINDS_OF_SCALES = {torch.float8_e4m3fn: "float8", torch.float8_e8m0fnu: "power"}


class Tensors(NamedTuple):
    """The tensors of a matrix, as kernels take them on any device. Where one is missing, another takes its place, and
    is not read."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    offsets: torch.Tensor
    table: torch.Tensor
    tensor_scale: torch.Tensor


def tensors_of(matrix: Quantized) -> Tensors:
    """Floats of 8 bits are read as bytes."""
    found = {name: _as_bytes(tensor) for name, tensor in matrix.tensors.items()}
    codes, scales = found["codes"], found["scales"]
    return Tensors(
        codes,
        scales,
        found.get("zeros", codes),
        found.get("offsets", scales),
        found.get("table", scales),
        found.get("tensor_scale", scales),
    )


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8) if tensor.dtype in _KINDS_OF_SCALES else tensor


def constants(matrix: Quantized) -> dict[str, Any]:
    """The constants of kernels for this matrix: how it lies, and what its codes mean."""
    tensors, groups = tensors_of(matrix), groups_of(matrix)
    is_integer, is_table = isinstance(matrix, IntGroups), isinstance(matrix, TableBlocks)
    has_zeros = isinstance(matrix, IntGroups) and matrix.zeros is not None
    has_offsets = isinstance(matrix, IntGroups) and matrix.offsets is not None
    rows_of_scale = (matrix.block_rows, matrix.first_row) if isinstance(matrix, Float8Grid) else (1, 0)
    return {
        "LENGTH": matrix.shape[1],
        "NUM_COLUMNS": matrix.out_features,
        "STRIDE_CODES": tensors.codes.stride(0),
        "STRIDE_SCALES": tensors.scales.stride(0),
        "STRIDE_ZEROS": tensors.zeros.stride(0) if has_zeros else 0,
        "STRIDE_OFFSETS": tensors.offsets.stride(0) if has_offsets else 0,
        "IS_ROUNDED": matrix.input_bits > 0,
        "HAS_ZEROS": has_zeros,
        "HAS_OFFSETS": has_offsets,
        "KIND": "integer" if is_integer else "table" if is_table else "float8",
        "IS_PACKED": _is_packed(matrix),
        "IS_HIGH_FIRST": isinstance(matrix, TableBlocks) and not matrix.low_first,
        "ZERO": matrix.usual_zero if isinstance(matrix, IntGroups) else 0,
        "SCALE": _KINDS_OF_SCALES.get(matrix.scales.dtype, "float"),
        "HAS_TENSOR_SCALE": isinstance(matrix, TableBlocks) and matrix.tensor_scale is not None,
        "GROUP": groups.size,
        "FIRST": groups.first,
        "NUM_GROUPS": matrix.scales.shape[1],
        "COLUMNS_PER_SCALE": rows_of_scale[0],
        "FIRST_IN_SCALE": rows_of_scale[1],
    }


def groups_of(matrix: Quantized) -> Groups:
    """The inputs of a scale of this matrix."""
    found = matrix.groups
    return _ONE_GROUP if found.first + matrix.shape[1] <= found.size else found


def _is_packed(matrix: Quantized) -> bool:
    return isinstance(matrix, TableBlocks) or (isinstance(matrix, IntGroups) and matrix.bits == 4)


def is_in_tiles(matrix: Quantized) -> bool:
    """Whether its codes are bytes or halves of them, groups and bytes are whole tiles or whole parts of tiles, and rows
    are rounded for a GPU, if they are."""
    if isinstance(matrix, IntGroups) and (matrix.bits not in (4, 8) or matrix.group_of_column is not None):
        return False
    if rounds_inputs(matrix) and matrix.input_block != gpu_input_block(matrix):
        return False
    groups = groups_of(matrix)
    begins_with_byte = groups.first % 2 == 0 or not _is_packed(matrix)
    return begins_with_byte and _fits(groups.size, _SHORTEST)


def _fits(group: int, block: int) -> bool:
    return group % block == 0 or (group < block and block % group == 0 and group > 1)


def tile_for(tile: SplitTile, matrix: Quantized, most_columns: int = 128) -> SplitTile:
    """The tile with as many inputs as are rounded with one scale, or as go with the groups of a matrix. `most_columns`:
    of a tile for rounded rows."""
    groups, length = groups_of(matrix), matrix.shape[1]
    if matrix.input_bits and not isinstance(matrix, TableBlocks):
        # Each tile's product is held beside the sum: that takes registers, and masks take some, too.
        is_whole = groups.first == 0 and length % matrix.input_block == 0
        columns = min(tile.columns, most_columns if is_whole else 64)
        num_warps = tile.num_warps if is_whole and tile.rows <= FEW_ROWS else 8
        return replace(tile, columns=columns, length=matrix.input_block, num_warps=num_warps)
    return _for_groups(tile, groups, length)


def _for_groups(tile: SplitTile, groups: Groups, length: int) -> SplitTile:
    """The tile with inputs of whole groups, or of a part of one. Masks take registers, so tiles are shorter where
    that leaves none in part. The shortest, and those that are in part all the same, have more threads."""
    half = max(tile.length // 2, _SHORTEST)
    whole = [] if groups.first else [size for size in (tile.length, half, _SHORTEST) if length % size == 0]
    block = whole[0] if whole else half
    if not whole or block < half:
        tile = replace(tile, num_warps=8)
    while not _fits(groups.size, block):
        block //= 2
    return replace(tile, length=block)
