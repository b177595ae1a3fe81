"""States through the chunks of spans of several tokens, one after the other, where the rows of a matrix forget by
themselves (KDA). What follows from the tokens of a chunk alone is there already, in `RowWork`.

Of a chunk that begins with S0, with keys and queries times what is left of each row for them:

    known, asked = S0^T keys, S0^T queries          one product of 64 rows, which Hopper's matrix units take
    change, own = system (value - known), scores system (value - known)      another
    result = asked + own
    S1 = what is left of S0 + sum of key change^T, of keys times what is left at the end of the chunk
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import LongSpans, RecurrentSpans
from penstock_kernels.gpu.recurrent import bounds_of
from penstock_kernels.gpu.split_product import halves, product_of_halves
from penstock_kernels.gpu.tiles import SHARED_AMPERE, processor

# Tokens of a chunk. With keys of 128 a turn reads 58 KB: two more are in flight, or one where there is less room. Of 64
# tokens it would be one at a time.
ROW_CHUNK = 32
# Columns of a state that a program carries: one sequence of 32 heads of 128 fills 128 programs. Unmeasured.
_COLUMNS = 32
_STAGES, _STAGES_OF_FEW = 3, 1


class RowWork(NamedTuple):
    """How the tokens of each chunk act on each other, for each head. Numbers of float32 are two halves of bfloat16, the
    second a whole tile behind the first; keys have BLOCK_KEY numbers.

    `askers`: [num_chunks, num_heads, 2, 2 * ROW_CHUNK, BLOCK_KEY]: keys, then queries, times what is left for them.
    `squares`: [num_chunks, num_heads, 2, 2 * ROW_CHUNK, ROW_CHUNK]: the system, then the scores times it.
    `keys`: [num_chunks, num_heads, 2, ROW_CHUNK, BLOCK_KEY]: times what is left at the end of the chunk.
    `left`: [num_chunks, num_heads, BLOCK_KEY] float32: what is left there of each row.
    """

    askers: torch.Tensor
    squares: torch.Tensor
    keys: torch.Tensor
    left: torch.Tensor


def row_work(spans: LongSpans, num_heads: int, padded: int, device: torch.device) -> RowWork:
    """Memory for a `RowWork`. `padded`: BLOCK_KEY."""

    def tiles(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(spans.num_chunks, num_heads, *shape, dtype=dtype, device=device)

    return RowWork(
        tiles(2, 2 * ROW_CHUNK, padded),
        tiles(2, 2 * ROW_CHUNK, ROW_CHUNK),
        tiles(2, ROW_CHUNK, padded),
        tiles(padded, dtype=torch.float32),
    )


@triton.jit
def store_halves(tile_ptr, x, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores rows of a tile that has SIZE numbers. x: [ROWS, COLUMNS] float32."""
    numbers = tile_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    high, low = halves(x)
    tl.store(numbers, high)
    tl.store(numbers + SIZE, low)


@triton.jit
def _load_halves(tile_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    numbers = tile_ptr + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return tl.load(numbers), tl.load(numbers + ROWS * COLUMNS)


@triton.jit
def _both_products(tile_ptr, right, CHUNK: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_VALUE: tl.constexpr):
    """The products of the first and of the last CHUNK rows of a stored tile."""
    high, low = _load_halves(tile_ptr, 2 * CHUNK, COLUMNS)
    found = product_of_halves(high, low, right, tl.zeros([2 * CHUNK, BLOCK_VALUE], tl.float32))
    return tl.split(tl.permute(tl.reshape(found, [2, CHUNK, BLOCK_VALUE]), (1, 2, 0)))


@triton.jit
def _carry_rows_kernel(
    value_ptr, asker_ptr, square_ptr, key_ptr, left_ptr, state_ptr, slot_ptr, is_first_ptr, bound_ptr, out_ptr,
    stride_value,
    NUM_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's matrix, through all chunks of a span."""
    span, begin, end, chunk = bounds_of(bound_ptr, tl.program_id(0).to(tl.int64))
    head = tl.program_id(1).to(tl.int64)
    rows, columns = tl.arange(0, BLOCK_KEY), tl.program_id(2) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    is_column, of_head = (columns < VALUE_DIM)[None, :], head * VALUE_DIM + columns[None, :]
    is_number = (rows < KEY_DIM)[:, None] & is_column
    numbers = state_ptr + (tl.load(slot_ptr + span) * NUM_HEADS + head) * KEY_DIM * VALUE_DIM
    numbers += rows[:, None] * VALUE_DIM + columns[None, :]
    state = tl.where(tl.load(is_first_ptr + span), 0.0, tl.load(numbers, mask=is_number, other=0.0))
    ASKERS: tl.constexpr = 4 * CHUNK * BLOCK_KEY
    place = chunk * NUM_HEADS + head
    asker_ptr += place * ASKERS
    square_ptr += place * 4 * CHUNK * CHUNK
    key_ptr += place * 2 * CHUNK * BLOCK_KEY
    left_ptr += place * BLOCK_KEY + rows
    for first in range(begin, end, CHUNK):
        tokens = (first + tl.arange(0, CHUNK))[:, None]
        mask = (tokens < end) & is_column
        known, asked = _both_products(asker_ptr, state, CHUNK, BLOCK_KEY, BLOCK_VALUE)
        value = tl.load(value_ptr + tokens * stride_value + of_head, mask=mask, other=0.0).to(tl.float32)
        change, own = _both_products(square_ptr, value - known, CHUNK, CHUNK, BLOCK_VALUE)
        found = (asked + own).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + tokens * NUM_HEADS * VALUE_DIM + of_head, found, mask=mask)
        high, low = _load_halves(key_ptr, CHUNK, BLOCK_KEY)
        state *= tl.load(left_ptr)[:, None]
        state = product_of_halves(tl.trans(high), tl.trans(low), change, state)
        asker_ptr += NUM_HEADS * ASKERS
        square_ptr += NUM_HEADS * 4 * CHUNK * CHUNK
        key_ptr += NUM_HEADS * 2 * CHUNK * BLOCK_KEY
        left_ptr += NUM_HEADS * BLOCK_KEY
    tl.store(numbers, state, mask=is_number)


def carry_rows(
    value: torch.Tensor,
    work: RowWork,
    state: torch.Tensor,
    spans: RecurrentSpans,
    bounds: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of longer spans, whose `bounds` these are."""
    _, num_heads, key_dim, value_dim = state.shape
    block = max(16, min(_COLUMNS, triton.next_power_of_2(value_dim)))
    _carry_rows_kernel[(len(bounds), num_heads, triton.cdiv(value_dim, block))](
        value,
        *work,
        state,
        spans.slots,
        spans.is_first,
        bounds,
        out,
        value.stride(0),
        NUM_HEADS=num_heads,
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_KEY=work.left.shape[2],
        BLOCK_VALUE=block,
        CHUNK=ROW_CHUNK,
        num_warps=4,
        num_stages=_STAGES if processor(value.device).shared_bytes >= SHARED_AMPERE else _STAGES_OF_FEW,
    )
