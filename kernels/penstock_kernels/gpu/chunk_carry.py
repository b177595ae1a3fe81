"""States through the chunks of spans of several tokens, one after the other: what the delta rule and the state space of
Mamba-2 have in common. What follows from the tokens of a chunk alone is there already, in `ChunkWork`.

A head's matrix has a row for each number of a key, and is asked by queries. Of a chunk that begins with S0:

    change = system (value - left S0^T key)           of the delta rule; else the values themselves
    result = left S0^T query + scores change
    S1 = all that is left of S0 + sum of left key change^T
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import LongSpans, RecurrentSpans
from penstock_kernels.gpu.recurrent import bounds_of
from penstock_kernels.gpu.split_product import given_product, halves, product_of_halves
from penstock_kernels.gpu.tiles import SHARED_AMPERE, processor

CHUNK = 64
# Columns of a state that a program carries: one sequence of 32 heads of 128 fills 128 programs. Unmeasured.
_COLUMNS = 32
# With keys of 128 a tile of all that a turn reads takes 68 KB: three are in flight where there is room for them.
_STAGES, _STAGES_OF_FEW = 3, 1


class ChunkWork(NamedTuple):
    """How the tokens of each chunk act on each other, for each head.

    `squares`: [num_chunks, num_heads, 2 or 4, CHUNK, CHUNK] bfloat16: both halves of the scores, then of the system.
    `factors`: [num_chunks, num_heads, 4, CHUNK] float32, of tokens: what is left for the query, and of this key at the
    end of the chunk; all that is left there, whatever the token; and what is left for the key.
    """

    squares: torch.Tensor
    factors: torch.Tensor


def chunk_work(spans: LongSpans, num_heads: int, corrects: bool, device: torch.device) -> ChunkWork:
    """Memory for a `ChunkWork`."""
    shape = spans.num_chunks, num_heads
    squares = torch.empty(*shape, 4 if corrects else 2, CHUNK, CHUNK, dtype=torch.bfloat16, device=device)
    return ChunkWork(squares, torch.empty(*shape, 4, CHUNK, dtype=torch.float32, device=device))


@triton.jit
def store_square(square_ptr, square, CHUNK: tl.constexpr):
    """Stores both halves of `square` [CHUNK, CHUNK], one behind the other."""
    places = tl.arange(0, CHUNK)
    numbers = square_ptr + places[:, None] * CHUNK + places[None, :]
    high, low = halves(square)
    tl.store(numbers, high)
    tl.store(numbers + CHUNK * CHUNK, low)


@triton.jit
def _multiply_square(square_ptr, right, total, CHUNK: tl.constexpr):
    """A stored square times [CHUNK, columns], added to `total`."""
    places = tl.arange(0, CHUNK)
    numbers = square_ptr + places[:, None] * CHUNK + places[None, :]
    return product_of_halves(tl.load(numbers), tl.load(numbers + CHUNK * CHUNK), right, total)


@triton.jit
def _carry_kernel(
    query_ptr, key_ptr, value_ptr, square_ptr, factor_ptr, state_ptr, slot_ptr, is_first_ptr, bound_ptr, out_ptr,
    stride_query, stride_key, stride_value, stride_row, stride_column,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr, CHUNK: tl.constexpr,
    CORRECTS: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's matrix, through all chunks of a span."""
    span, begin, end, chunk = bounds_of(bound_ptr, tl.program_id(0).to(tl.int64))
    head = tl.program_id(1).to(tl.int64)
    rows, columns = tl.arange(0, BLOCK_KEY), tl.program_id(2) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    is_row, is_column = rows < KEY_DIM, columns < VALUE_DIM
    is_number = is_row[:, None] & is_column[None, :]
    numbers = state_ptr + tl.load(slot_ptr + span) * NUM_HEADS * KEY_DIM * VALUE_DIM
    numbers += head * KEY_DIM * VALUE_DIM + rows[:, None] * stride_row + columns[None, :] * stride_column
    state = tl.where(tl.load(is_first_ptr + span), 0.0, tl.load(numbers, mask=is_number, other=0.0))
    places, nothing = tl.arange(0, CHUNK), tl.zeros([CHUNK, BLOCK_VALUE], tl.float32)
    SQUARES: tl.constexpr = (4 if CORRECTS else 2) * CHUNK * CHUNK
    square_ptr += (chunk * NUM_HEADS + head) * SQUARES
    factor_ptr += (chunk * NUM_HEADS + head) * 4 * CHUNK
    key_head, of_head = head // COPIES * KEY_DIM + rows[None, :], head * VALUE_DIM + columns[None, :]
    for first in range(begin, end, CHUNK):
        tokens, is_token = first + places, first + places < end
        mask, is_value = is_token[:, None] & is_row[None, :], is_token[:, None] & is_column[None, :]
        key = tl.load(key_ptr + tokens[:, None] * stride_key + key_head, mask=mask, other=0.0)
        query = tl.load(query_ptr + tokens[:, None] * stride_query + key_head, mask=mask, other=0.0)
        value = tl.load(value_ptr + tokens[:, None] * stride_value + of_head, mask=is_value, other=0.0)
        change = value.to(tl.float32)
        if CORRECTS:
            known = given_product(key, state, nothing) * tl.load(factor_ptr + 3 * CHUNK + places)[:, None]
        found = given_product(query, state, nothing) * tl.load(factor_ptr + places)[:, None]
        if CORRECTS:
            change = _multiply_square(square_ptr + 2 * CHUNK * CHUNK, change - known, nothing, CHUNK)
        found = _multiply_square(square_ptr, change, found, CHUNK)
        target = out_ptr + tokens[:, None] * NUM_HEADS * VALUE_DIM + of_head
        tl.store(target, found.to(out_ptr.dtype.element_ty), mask=is_value)
        change *= tl.load(factor_ptr + CHUNK + places)[:, None]
        state = given_product(tl.trans(key), change, state * tl.load(factor_ptr + 2 * CHUNK))
        square_ptr += NUM_HEADS * SQUARES
        factor_ptr += NUM_HEADS * 4 * CHUNK
    tl.store(numbers, state, mask=is_number)


def carry(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    work: ChunkWork,
    state: torch.Tensor,
    spans: RecurrentSpans,
    bounds: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of longer spans. `state`: [num_rows, num_heads, key_dim, value_dim] in any order
    of the last two. `bounds`: of the longer spans."""
    (_, num_heads, value_dim), key_dim = value.shape, key.shape[2]
    block = max(16, min(_COLUMNS, triton.next_power_of_2(value_dim)))
    _carry_kernel[(len(bounds), num_heads, triton.cdiv(value_dim, block))](
        query,
        key,
        value,
        *work,
        state,
        spans.slots,
        spans.is_first,
        bounds,
        out,
        *(part.stride(0) for part in (query, key, value)),
        *state.stride()[2:],
        NUM_HEADS=num_heads,
        COPIES=num_heads // key.shape[1],
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_KEY=padded_keys(key_dim),
        BLOCK_VALUE=block,
        CHUNK=CHUNK,
        CORRECTS=work.squares.shape[2] == 4,
        num_warps=4,
        num_stages=_STAGES if processor(value.device).shared_bytes >= SHARED_AMPERE else _STAGES_OF_FEW,
    )


def padded_keys(key_dim: int) -> int:
    """Numbers of a key in a tile: matrix units take 16 at least."""
    padded: int = max(16, triton.next_power_of_2(key_dim))
    return padded
