"""Products with weights of few bits.

Up to 16 rows are bound by reading the codes: the length is divided among programs, and a second kernel adds their sums
in one order, so nothing is atomic and a captured graph holds. More rows are bound by the matrix units.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from penstock_kernels import reference
from penstock_kernels.base.quantized import Quantized
from penstock_kernels.gpu.quantized_tiles import (
    add_products,
    constants,
    is_in_tiles,
    table_of,
    tensors_of,
    tile_for,
)
from penstock_kernels.gpu.rounded_rows import Rows, rows_for
from penstock_kernels.gpu.tiles import FEW_ROWS, SplitTile, processor, quantized_tile

# Numbers of a program that adds sums: 8 per thread at 4 warps. Unmeasured.
_BLOCK = 1024


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_linear_kernel(
    x_ptr, x_scale_ptr, codes_ptr, scale_ptr, zero_ptr, offset_ptr, table_ptr, tensor_scale_ptr, bias_ptr, out_ptr,
    num_rows, stride_x, stride_x_scale, stride_out, IS_ROUNDED: tl.constexpr, LENGTH: tl.constexpr,
    NUM_COLUMNS: tl.constexpr, STRIDE_CODES: tl.constexpr, STRIDE_SCALES: tl.constexpr, STRIDE_ZEROS: tl.constexpr,
    STRIDE_OFFSETS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_OFFSETS: tl.constexpr, KIND: tl.constexpr,
    IS_PACKED: tl.constexpr, IS_HIGH_FIRST: tl.constexpr, ZERO: tl.constexpr, SCALE: tl.constexpr,
    HAS_TENSOR_SCALE: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr, NUM_GROUPS: tl.constexpr,
    COLUMNS_PER_SCALE: tl.constexpr, FIRST_IN_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_LENGTH: tl.constexpr,
):  # fmt: skip
    """Rows times columns over a share of the length."""
    rows = tl.program_id(1).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(0).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    split = tl.program_id(2)
    is_row, is_column = rows < num_rows, columns < NUM_COLUMNS
    safe = tl.where(is_column, columns, 0)
    scale_rows = scale_ptr + ((FIRST_IN_SCALE + safe) // COLUMNS_PER_SCALE * STRIDE_SCALES)[:, None]
    zero_rows = zero_ptr + (safe * STRIDE_ZEROS)[:, None]
    offset_rows = offset_ptr + (safe * STRIDE_OFFSETS)[:, None]
    x_rows = x_ptr + (rows * stride_x)[:, None]
    code_rows = codes_ptr + (safe * STRIDE_CODES)[:, None]
    table = table_of(table_ptr, KIND, BLOCK_COLUMNS)
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    TILES: tl.constexpr = (FIRST + LENGTH + BLOCK_LENGTH - 1) // BLOCK_LENGTH
    SHARE: tl.constexpr = (TILES + SPLITS - 1) // SPLITS
    total = add_products(
        total, x_rows, x_scale_ptr + rows * stride_x_scale, code_rows, scale_rows, zero_rows, offset_rows, table,
        tensor_scale_ptr, is_row, is_column, split * SHARE, tl.minimum(split * SHARE + SHARE, TILES), IS_ROUNDED,
        LENGTH, HAS_ZEROS, HAS_OFFSETS, KIND, IS_PACKED, IS_HIGH_FIRST, ZERO, SCALE, HAS_TENSOR_SCALE, GROUP, FIRST,
        NUM_GROUPS, BLOCK_ROWS, BLOCK_COLUMNS, BLOCK_LENGTH)  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + ((split.to(tl.int64) * num_rows + rows) * stride_out)[:, None] + columns[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_numbers"])
def _sum_of_shares_kernel(
    x_ptr,
    bias_ptr,
    out_ptr,
    num_numbers,
    NUM_COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums of the shares of the length, in their order."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < num_numbers
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(x_ptr + split * num_numbers.to(tl.int64) + places, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % NUM_COLUMNS, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, total.to(out_ptr.dtype.element_ty), mask=mask)


def quantized_linear(
    x: torch.Tensor, parts: tuple[Quantized, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    num_rows, length = x.shape
    num_columns = sum(part.out_features for part in parts)
    if num_rows * num_columns * length == 0 or not all(is_in_tiles(part) for part in parts):
        return reference.quantized_linear(x, parts, bias, invariant)
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    shape, rows = (num_columns, length), rows_for(x, parts[0])
    tile = quantized_tile(
        None if invariant else num_rows, shape, rows.numbers.element_size(), processor(x.device)
    )
    if tile.splits == 1:
        _multiply(rows, parts, bias, out, tile)
        return out
    sums = torch.empty((tile.splits, num_rows, num_columns), dtype=torch.float32, device=x.device)
    _multiply(rows, parts, None, sums, tile)
    _sum_of_shares_kernel[(triton.cdiv(out.numel(), _BLOCK),)](
        sums,
        sums if bias is None else bias,
        out,
        out.numel(),
        NUM_COLUMNS=num_columns,
        SPLITS=tile.splits,
        HAS_BIAS=bias is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out


def _multiply(
    rows: Rows,
    parts: tuple[Quantized, ...],
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: SplitTile,
) -> None:
    first = 0
    for part in parts:
        count = part.out_features
        its_bias = None if bias is None else bias[first : first + count]
        if count:
            _launch(rows, part, its_bias, out[..., first : first + count], tile)
        first += count


def _for_columns(tile: SplitTile, matrix: Quantized) -> SplitTile:
    """Where the last tile has a part of its columns, masks take registers: sm_80 and sm_89 spill with 128 rows, and
    with few rows and 4 warps."""
    if matrix.input_bits or matrix.out_features % tile.columns == 0 or FEW_ROWS < tile.rows <= 64:
        return tile
    return replace(tile, num_warps=8) if tile.rows <= FEW_ROWS else replace(tile, rows=64, num_warps=4)


def _launch(
    rows: Rows, matrix: Quantized, bias: torch.Tensor | None, out: torch.Tensor, tile: SplitTile
) -> None:
    tile, (x, scales) = tile_for(_for_columns(tile, matrix), matrix), rows
    num_tiles = triton.cdiv(matrix.out_features, tile.columns), triton.cdiv(x.shape[0], tile.rows)
    _quantized_linear_kernel[(*num_tiles, tile.splits)](
        x,
        scales,
        *tensors_of(matrix),
        out if bias is None else bias,
        out,
        x.shape[0],
        x.stride(0),
        scales.stride(0),
        out.stride(-2),
        **constants(matrix),
        HAS_BIAS=bias is not None,
        SPLITS=tile.splits,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_LENGTH=tile.length,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
