"""The parts of a row of scores, each of which has a program of its own: a row of a large vocabulary takes many
multiprocessors. Parts depend on the vocabulary alone, so a row gives the same bits beside any others.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.chain import begin, chained

# Scores of a part: 16 per thread at 4 warps. Unmeasured.
_BLOCK = 2048


class RowParts(NamedTuple):
    """The largest number of every part and the first id that has it: [num_rows, num_parts] float32 and int32."""

    largest: torch.Tensor
    ids: torch.Tensor
    block: int  # ids of a part


@triton.jit
def load_scaled(scores_ptr, ids, num_scores, largest, temperature):
    """Scores with the largest moved to 0, divided by the temperature."""
    scores = tl.load(scores_ptr + ids, mask=ids < num_scores, other=float("-inf"))
    return tl.div_rn(scores - largest, temperature + tl.zeros_like(scores))


@triton.jit
def largest_of_row(largest_ptr, row, num_parts, BLOCK_PARTS: tl.constexpr):
    parts = tl.arange(0, BLOCK_PARTS)
    return tl.max(
        tl.load(largest_ptr + row * num_parts + parts, mask=parts < num_parts, other=float("-inf")), axis=0
    )


@triton.jit
def store_largest(largest_ptr, id_ptr, numbers, ids, last):
    """The largest of a part and the smallest id that has it; an id of the vocabulary even where all are NaN."""
    numbers = tl.where(numbers == numbers, numbers, float("-inf"))
    largest = tl.max(numbers, axis=0)
    tl.store(largest_ptr, largest)
    tl.store(id_ptr, tl.min(tl.where(numbers == largest, ids, last), axis=0))


@triton.jit
def _largest_kernel(
    scores_ptr, largest_ptr, id_ptr, stride_row, vocab_size, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    begin(CHAINED)
    row, part, num_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row * stride_row + ids, mask=ids < vocab_size, other=float("-inf"))
    where = row * num_parts + part
    store_largest(largest_ptr + where, id_ptr + where, scores, ids, vocab_size - 1)


@triton.jit
def _first_of_parts_kernel(
    largest_ptr, id_ptr, token_ptr, num_parts, vocab_size, BLOCK_PARTS: tl.constexpr, CHAINED: tl.constexpr
):
    """The first of the largest, over the parts of a row."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK_PARTS)
    is_part = parts < num_parts
    numbers = tl.load(largest_ptr + row * num_parts + parts, mask=is_part, other=float("-inf"))
    ids = tl.load(id_ptr + row * num_parts + parts, mask=is_part, other=vocab_size - 1)
    largest = tl.max(numbers, axis=0)
    tl.store(token_ptr + row, tl.min(tl.where(numbers == largest, ids, vocab_size - 1), axis=0).to(tl.int64))


def empty_parts(num_rows: int, vocab_size: int, device: torch.device) -> RowParts:
    block = min(_BLOCK, triton.next_power_of_2(vocab_size))
    shape = (num_rows, triton.cdiv(vocab_size, block))
    return RowParts(
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(shape, dtype=torch.int32, device=device),
        block,
    )


def largest_parts(scores: torch.Tensor) -> RowParts:
    num_rows, vocab_size = scores.shape
    parts = empty_parts(num_rows, vocab_size, scores.device)
    _largest_kernel[parts.largest.shape](
        scores,
        parts.largest,
        parts.ids,
        scores.stride(0),
        vocab_size,
        BLOCK=parts.block,
        num_warps=4,
        **chained(scores.device),
    )
    return parts


def join_parts(parts: RowParts, vocab_size: int) -> torch.Tensor:
    """[num_rows] int64: the id of the largest number of each row, the first of equals."""
    num_rows, num_parts = parts.largest.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=parts.largest.device)
    _first_of_parts_kernel[(num_rows,)](
        parts.largest,
        parts.ids,
        tokens,
        num_parts,
        vocab_size,
        BLOCK_PARTS=triton.next_power_of_2(num_parts),
        num_warps=1,
        **chained(tokens.device),
    )
    return tokens
