"""Products of up to 16 rows, bound by reading the weight: the length is divided among programs, and what adds their
sums does what comes after the product.

A norm before it is folded in: rows are multiplied by its weight as they are read, and by their scale at the end, when
the squares of all shares are known. So the product waits for no pass over its input. Nothing is atomic, and the shares
are added in one order.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.base.input_norm import InputNorm
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.measured_products import MOST_ROWS
from penstock_kernels.gpu.tiles import FEW_ROWS, few_rows_tile, processor

# Numbers of a program that adds sums: 2 per thread at 4 warps, because there are few. Unmeasured.
_BLOCK = 256


@triton.jit
def _input(x_ptr, residual_ptr, norm_ptr, rows, stride_x, lengths, mask, weight_offset, LENGTH: tl.constexpr,
           HAS_NORM: tl.constexpr):  # fmt: skip
    """A tile of the input of the product, and the squares of its rows: of their sums with the residual, as rounded."""
    x = tl.load(x_ptr + (rows * stride_x)[:, None] + lengths[None, :], mask=mask, other=0.0)
    squares = tl.zeros([x.shape[0]], tl.float32)
    if HAS_NORM:
        residual = tl.load(residual_ptr + (rows * LENGTH)[:, None] + lengths[None, :], mask=mask, other=0.0)
        total = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype).to(tl.float32)
        weight = tl.load(norm_ptr + lengths, mask=lengths < LENGTH, other=0.0).to(tl.float32) + weight_offset
        x = (total * weight[None, :]).to(x.dtype)
        squares = tl.sum(total * total, axis=1)
    return x, squares


@triton.jit(do_not_specialize=["num_rows"])
def _share_kernel(x_ptr, residual_ptr, norm_ptr, weight_ptr, sum_ptr, square_ptr, num_rows, stride_x, weight_offset,
                  LENGTH: tl.constexpr, NUM_COLUMNS: tl.constexpr, HAS_NORM: tl.constexpr, SPLITS: tl.constexpr,
                  BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_LENGTH: tl.constexpr,
                  CHAINED: tl.constexpr):  # fmt: skip
    """All rows times some columns, over a share of the length."""
    begin(CHAINED)
    TILES: tl.constexpr = (LENGTH + BLOCK_LENGTH - 1) // BLOCK_LENGTH
    SHARE: tl.constexpr = (TILES + SPLITS - 1) // SPLITS
    split = tl.program_id(1).to(tl.int64)
    rows = tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(0).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    is_row, is_column = rows < num_rows, columns < NUM_COLUMNS
    # Columns behind the last are the first again, so that nothing is masked where the length is in whole tiles.
    weight_rows = weight_ptr + (tl.where(is_column, columns, 0) * LENGTH)[:, None]
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    squares = tl.zeros([BLOCK_ROWS], tl.float32)
    for tile in range(split * SHARE, tl.minimum(split * SHARE + SHARE, TILES)):
        lengths = tile * BLOCK_LENGTH + tl.arange(0, BLOCK_LENGTH)
        is_inside = lengths < LENGTH
        if LENGTH % BLOCK_LENGTH == 0:
            weight = tl.load(weight_rows + lengths[None, :])
        else:
            weight = tl.load(weight_rows + lengths[None, :], mask=is_inside[None, :], other=0.0)
        mask = is_row[:, None] & is_inside[None, :]
        x, x_squares = _input(x_ptr, residual_ptr, norm_ptr, rows, stride_x, lengths, mask, weight_offset, LENGTH,
                              HAS_NORM)  # fmt: skip
        squares += x_squares
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    places = ((split * num_rows + rows) * NUM_COLUMNS)[:, None] + columns[None, :]
    tl.store(sum_ptr + places, total, mask=is_row[:, None] & is_column[None, :])
    if HAS_NORM and tl.program_id(0) == 0:
        tl.store(square_ptr + split * num_rows + rows, squares, mask=is_row)


@triton.jit
def _sum_of(sum_ptr, bias_ptr, row, columns, mask, num_rows, NUM_COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
            HAS_BIAS: tl.constexpr, scale):  # fmt: skip
    """Some columns of a row: all shares, scaled, and the bias."""
    total = tl.zeros(columns.shape, tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(sum_ptr + (split * num_rows + row) * NUM_COLUMNS + columns, mask=mask, other=0.0)
    total *= scale
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _finish_kernel(sum_ptr, square_ptr, bias_ptr, x_ptr, residual_ptr, out_ptr, num_rows, stride_x, eps,
                   LENGTH: tl.constexpr, NUM_COLUMNS: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr,
                   GATED: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr):  # fmt: skip
    """Some columns of a row of the result, and as many of the residual."""
    begin(CHAINED)
    WIDTH: tl.constexpr = NUM_COLUMNS // 2 if GATED else NUM_COLUMNS
    row = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    scale = 1.0
    if HAS_NORM:
        squares = 0.0
        for split in tl.static_range(SPLITS):
            squares += tl.load(square_ptr + split * num_rows + row)
        scale = tl.rsqrt(squares / LENGTH + eps)
        is_inside = columns < LENGTH
        residual_ptrs = residual_ptr + row * LENGTH + columns
        residual = tl.load(residual_ptrs, mask=is_inside, other=0.0).to(tl.float32)
        residual += tl.load(x_ptr + row * stride_x + columns, mask=is_inside, other=0.0).to(tl.float32)
        tl.store(residual_ptrs, residual.to(residual_ptr.dtype.element_ty), mask=is_inside)
    result = _sum_of(sum_ptr, bias_ptr, row, columns, mask, num_rows, NUM_COLUMNS, SPLITS, HAS_BIAS, scale)
    if GATED:
        # Both are rounded as they would be between two ops.
        gate = result.to(out_ptr.dtype.element_ty).to(tl.float32)
        up = _sum_of(
            sum_ptr, bias_ptr, row, columns + WIDTH, mask, num_rows, NUM_COLUMNS, SPLITS, HAS_BIAS, scale
        )
        result = gate * tl.sigmoid(gate) * up.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + columns, result.to(out_ptr.dtype.element_ty), mask=mask)


def is_faster(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the product was measured to be, on this device."""
    if not runs_kernels(x.device) or not 0 < x.shape[0] <= FEW_ROWS or x.dtype == torch.float32:
        return False
    measured = MOST_ROWS.get(processor(x.device).name, {})
    return x.shape[0] <= measured.get((weight.shape[0], weight.shape[1]), 0)


def fused_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, norm: InputNorm | None, gated: bool
) -> torch.Tensor:
    (num_rows, length), num_columns = x.shape, weight.shape[0]
    width = num_columns // 2 if gated else num_columns
    out = torch.empty((num_rows, width), dtype=x.dtype, device=x.device)
    if out.numel() == 0 or length == 0:
        return out.zero_()
    assert num_rows <= FEW_ROWS, "the table has a condition"
    tile = few_rows_tile((num_columns, length), x.element_size(), processor(x.device))
    sums = torch.empty((tile.splits, num_rows, num_columns), dtype=torch.float32, device=x.device)
    squares = torch.empty((tile.splits, num_rows), dtype=torch.float32, device=x.device)
    norm_weight, eps, residual, weight_offset = norm or (weight, 0.0, x, 0.0)
    shape = {
        "LENGTH": length,
        "NUM_COLUMNS": num_columns,
        "SPLITS": tile.splits,
        "HAS_NORM": norm is not None,
    }
    _share_kernel[(triton.cdiv(num_columns, tile.columns), tile.splits)](
        x,
        residual,
        norm_weight,
        weight,
        sums,
        squares,
        num_rows,
        x.stride(0),
        float(weight_offset),
        **shape,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_LENGTH=tile.length,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **chained(x.device),
    )
    widest = width if norm is None else max(width, length)
    _finish_kernel[(triton.cdiv(widest, _BLOCK), num_rows)](
        sums,
        squares,
        sums if bias is None else bias,
        x,
        residual,
        out,
        num_rows,
        x.stride(0),
        float(eps),
        **shape,
        HAS_BIAS=bias is not None,
        GATED=gated,
        BLOCK=_BLOCK,
        num_warps=4,
        **chained(x.device),
    )
    return out
