"""Low-rank adapters: one launch shrinks all rows by their adapters' matrices, one expands them into the outputs.

Which adapter a row has, and where its matrices are, are data on the device, so that a captured launch serves any. Rows
are sorted by adapter there, once a step for all layers (`routing`), and a program takes a tile of rows of one adapter:
a matrix is read once for 16 rows, not once for each. Ranks are read there, too: a row waits for no rank but its own.

    rows by adapter    (none) | A A A A A | C | D D D
    a program          a tile of A, some of its ranks, a part of the length
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.adapter_rows import MAX_SPLITS, AdapterRows
from penstock_kernels.base.adapter_table import NUM_WORDS, AdapterTable
from penstock_kernels.gpu.routing import ExpertTiles, expert_tiles

# Rows of a tile, as few as the matrix units take: a row's sums are the same in a tile of one row. Unmeasured.
_ROWS = 16
# Ranks of a program that shrinks, and programs among which those of a tile are divided. Unmeasured.
_BLOCK_RANK, _RANK_PROGRAMS = 16, 4
# Lengths that are divided among programs, at least so much for each: a step of few rows has few tiles. Unmeasured.
_SPLIT_LEN = 1024


class _Shape(NamedTuple):
    """How the length of a layer is divided: by its size alone, so that no sum depends on the batch."""

    block_len: int
    split_len: int
    num_splits: int


@triton.jit
def _word(words_ptr, number, which: tl.constexpr, NUM_WORDS: tl.constexpr):
    return tl.load(words_ptr + number * NUM_WORDS + which)


@triton.jit
def _matrix_ptr(words_ptr, number, which: tl.constexpr, NUM_WORDS: tl.constexpr, TYPE: tl.constexpr):
    """Memory of its own begins at a multiple of 16 bytes; a part of one at what its rows are multiples of."""
    matrix_ptr = _word(words_ptr, number, which, NUM_WORDS).to(tl.pointer_type(TYPE))
    return tl.multiple_of(matrix_ptr, 16)


@triton.jit(
    do_not_specialize=["stride_x", "stride_row", "stride_split"], do_not_specialize_on_alignment=["x_ptr"]
)
def _shrink_kernel(
    x_ptr,
    order_ptr,
    tile_ptr,
    words_ptr,
    shrunk_ptr,
    stride_x,
    stride_row,
    stride_split,
    LEN: tl.constexpr,
    SPLIT_LEN: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_LEN: tl.constexpr,
):
    """shrunk[split, row] = down @ x[row], over a part of the length."""
    tile, split = tl.program_id(0), tl.program_id(2).to(tl.int64)
    number = tl.load(tile_ptr + 3 * tile).to(tl.int64)
    if number < 0:
        return
    rank = _word(words_ptr, number, 5, NUM_WORDS)
    down_ptr = _matrix_ptr(words_ptr, number, 0, NUM_WORDS, x_ptr.dtype.element_ty)
    places = tl.load(tile_ptr + 3 * tile + 1) + tl.arange(0, ROWS)
    is_row = places < tl.load(tile_ptr + 3 * tile + 2)
    rows = tl.load(order_ptr + places, mask=is_row, other=0).to(tl.int64)
    x_ptrs = x_ptr + rows[:, None] * stride_x
    for first in range(tl.program_id(1) * BLOCK_RANK, rank, BLOCK_RANK * tl.num_programs(1)):
        ranks = first + tl.arange(0, BLOCK_RANK).to(tl.int64)
        down_ptrs = down_ptr + ranks[:, None] * LEN
        sums = tl.zeros((ROWS, BLOCK_RANK), tl.float32)
        for start in range(0, SPLIT_LEN, BLOCK_LEN):
            at = split * SPLIT_LEN + start + tl.arange(0, BLOCK_LEN)
            inside = (at < LEN)[None, :]
            x = tl.load(x_ptrs + at[None, :], mask=is_row[:, None] & inside, other=0.0)
            down = tl.load(down_ptrs + at[None, :], mask=(ranks < rank)[:, None] & inside, other=0.0)
            sums = tl.dot(x, tl.trans(down), sums, input_precision="ieee")
        shrunk_ptrs = shrunk_ptr + split * stride_split + rows[:, None] * stride_row + ranks[None, :]
        tl.store(shrunk_ptrs, sums, mask=is_row[:, None] & (ranks < rank)[None, :])


@triton.jit(do_not_specialize=["stride_row", "stride_split"])
def _expand_kernel(
    output_ptr,
    order_ptr,
    tile_ptr,
    words_ptr,
    shrunk_ptr,
    stride_row,
    stride_split,
    NUM_COLUMNS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    NUM_WORDS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_RANK: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """output[row] = output[row] * factor + up @ shrunk[row] + addend, the numbers that each column takes."""
    tile = tl.program_id(0)
    number = tl.load(tile_ptr + 3 * tile).to(tl.int64)
    if number < 0:
        return
    first_ptr = _word(words_ptr, number, 2, NUM_WORDS).to(tl.pointer_type(tl.int32))
    if first_ptr.to(tl.int64) == 0:
        return
    up_ptr = _matrix_ptr(words_ptr, number, 1, NUM_WORDS, output_ptr.dtype.element_ty)
    factor_ptr = _word(words_ptr, number, 3, NUM_WORDS).to(tl.pointer_type(tl.float32))
    addend_ptr = _word(words_ptr, number, 4, NUM_WORDS).to(tl.pointer_type(tl.float32))
    rank, width = _word(words_ptr, number, 5, NUM_WORDS), _word(words_ptr, number, 6, NUM_WORDS)
    places = tl.load(tile_ptr + 3 * tile + 1) + tl.arange(0, ROWS)
    is_row = places < tl.load(tile_ptr + 3 * tile + 2)
    rows = tl.load(order_ptr + places, mask=is_row, other=0).to(tl.int64)
    columns = tl.program_id(1).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    mask = columns < NUM_COLUMNS
    first = tl.load(first_ptr + columns, mask=mask, other=-1)
    mask &= first >= 0
    # The range of ranks that these columns take together: most often those of one projection.
    begin = tl.min(tl.where(mask, first, 2**30), axis=0)
    end = tl.minimum(tl.max(tl.where(mask, first, 0), axis=0) + width, rank)
    shrunk_ptrs = shrunk_ptr + rows[:, None] * stride_row
    sums = tl.zeros((ROWS, BLOCK_COLUMNS), tl.float32)
    for at in range(begin, end, BLOCK_RANK):
        ranks = at + tl.arange(0, BLOCK_RANK)
        is_given = is_row[:, None] & (ranks < end)[None, :]
        shrunk = tl.zeros((ROWS, BLOCK_RANK), tl.float32)
        for split in tl.static_range(NUM_SPLITS):
            part_ptrs = shrunk_ptrs + split * stride_split + ranks[None, :]
            shrunk += tl.load(part_ptrs, mask=is_given, other=0.0)
        own = ranks[:, None] - first[None, :]
        is_own = (own >= 0) & (own < width) & mask[None, :]
        up = tl.load(up_ptr + own.to(tl.int64) * NUM_COLUMNS + columns[None, :], mask=is_own, other=0.0)
        sums = tl.dot(shrunk, up.to(tl.float32), sums, input_precision="ieee")
    places_of = rows[:, None] * NUM_COLUMNS + columns[None, :]
    is_changed = is_row[:, None] & mask[None, :]
    output = tl.load(output_ptr + places_of, mask=is_changed, other=0.0).to(tl.float32)
    if addend_ptr.to(tl.int64) != 0:
        sums += tl.load(addend_ptr + columns, mask=mask, other=0.0)[None, :]
    if factor_ptr.to(tl.int64) != 0:
        output *= tl.load(factor_ptr + columns, mask=mask, other=0.0)[None, :]
    tl.store(output_ptr + places_of, (output + sums).to(output_ptr.dtype.element_ty), mask=is_changed)


def add_adapters(
    output: torch.Tensor, x: torch.Tensor, rows: AdapterRows, adapters: AdapterTable
) -> torch.Tensor:
    (num_rows, num_columns), num_adapters = output.shape, len(adapters.entries)
    if output.numel() == 0:
        return output
    found = rows.shared(num_adapters, lambda: expert_tiles(rows.numbers, num_adapters, _ROWS))
    shape = _shape(x.shape[1], x.element_size())
    width = max(adapters.max_rank, rows.room, 1)
    shrunk = torch.empty(shape.num_splits, num_rows, width, dtype=torch.float32, device=x.device)
    _shrink(x, found, adapters, shrunk, shape)
    # Wider tiles spill: of float32, and on sm_100 where there is one column.
    most_columns = 128 if x.element_size() == 2 else 32
    block_columns = min(most_columns, max(triton.next_power_of_2(num_columns), 16))
    _expand_kernel[(len(found.tiles), triton.cdiv(num_columns, block_columns))](
        output,
        found.order,
        found.tiles,
        adapters.words,
        shrunk,
        shrunk.stride(1),
        shrunk.stride(0),
        NUM_COLUMNS=num_columns,
        NUM_SPLITS=shape.num_splits,
        NUM_WORDS=NUM_WORDS,
        ROWS=_ROWS,
        BLOCK_RANK=_BLOCK_RANK,
        BLOCK_COLUMNS=block_columns,
        # With 4 these spill on sm_80.
        num_warps=8 if block_columns == 128 else 4,
    )
    return output


def _shrink(
    x: torch.Tensor, found: ExpertTiles, adapters: AdapterTable, shrunk: torch.Tensor, shape: _Shape
) -> None:
    num_programs = min(_RANK_PROGRAMS, triton.cdiv(shrunk.shape[2], _BLOCK_RANK))
    _shrink_kernel[(len(found.tiles), num_programs, shape.num_splits)](
        x,
        found.order,
        found.tiles,
        adapters.words,
        shrunk,
        x.stride(0),
        shrunk.stride(1),
        shrunk.stride(0),
        LEN=x.shape[1],
        SPLIT_LEN=shape.split_len,
        NUM_WORDS=NUM_WORDS,
        ROWS=_ROWS,
        BLOCK_RANK=_BLOCK_RANK,
        BLOCK_LEN=shape.block_len,
        num_warps=4,
    )


def _shape(length: int, element_bytes: int) -> _Shape:
    block_len = min(128 if element_bytes == 2 else 64, max(triton.next_power_of_2(length), 16))
    num_splits = max(1, min(length // _SPLIT_LEN, MAX_SPLITS))
    split_len = triton.cdiv(triton.cdiv(length, num_splits), block_len) * block_len
    return _Shape(block_len, split_len, num_splits)
