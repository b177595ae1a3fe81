"""The best positions of a context for each query, as an index finds them: their scores, and then which are the best.

Scores of a row are made by several programs, each with every so many-th tile of the keys, so that the grid is fixed and
a captured graph stays right as contexts grow. One program chooses for a row: it finds the score that enough of them
reach, eight bits at a time from counts, and writes the positions in their order.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.seen_rows import SeenRows
from penstock_kernels.gpu.attention_math import blocks_of, load_cached
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.threshold import key_of
from penstock_kernels.gpu.tiles import index_tile, processor

# Programs of a multiprocessor that make scores. Unmeasured.
_RESIDENT = 4
# Scores that a program which chooses reads at once, and its warps. Unmeasured.
_BLOCK, _WARPS = 2048, 8
_DIGIT: tl.constexpr = tl.constexpr(256)


@triton.jit(
    do_not_specialize=["stride_table", "stride_score", "top_k"],
    do_not_specialize_on_alignment=["query_ptr", "weight_ptr", "span_ptr", "len_ptr"],
)
def _index_kernel(
    query_ptr, weight_ptr, cache_ptr, table_ptr, span_ptr, len_ptr, score_ptr, stride_table, stride_score, top_k, scale,
    NUM_HEADS: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(len_ptr + row)
    # A query that sees no more than it chooses needs no scores.
    if seen <= top_k:
        return
    table_ptr += tl.load(span_ptr + row).to(tl.int64) * stride_table
    columns = tl.arange(0, BLOCK_DIM)
    for start in range(tl.program_id(1) * BLOCK_KEYS, seen, tl.num_programs(1) * BLOCK_KEYS):
        positions = start + tl.arange(0, BLOCK_KEYS)
        blocks = blocks_of(table_ptr, positions, seen, BLOCK_SIZE)
        keys = load_cached(cache_ptr, blocks, positions, columns, seen, BLOCK_SIZE * DIM, DIM, BLOCK_SIZE, DIM,
                           BLOCK_DIM)  # fmt: skip
        total = tl.zeros([BLOCK_KEYS], tl.float32)
        for first in range(0, NUM_HEADS, BLOCK_HEADS):
            heads = first + tl.arange(0, BLOCK_HEADS)
            is_head = heads < NUM_HEADS
            query = tl.load(query_ptr + (row * NUM_HEADS + heads)[:, None] * DIM + columns[None, :],
                            mask=is_head[:, None] & (columns < DIM)[None, :], other=0.0)  # fmt: skip
            weights = tl.load(weight_ptr + row * NUM_HEADS + heads, mask=is_head, other=0.0) * scale
            scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
            total += tl.sum(tl.maximum(scores, 0.0) * weights[:, None], axis=0)
        tl.store(score_ptr + row * stride_score + positions, total, mask=positions < seen)


@triton.jit
def _next_digit(score_ptr, num_scores, known, wanted, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    """The digits of the key that `wanted` of the scores reach, of those that begin with the known ones: one more is
    known then. And how many are wanted of the scores that begin so."""
    digits = tl.arange(0, _DIGIT)
    counts = tl.zeros([_DIGIT], tl.int32)
    for start in range(0, num_scores, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        is_here = positions < num_scores
        keys = key_of(tl.load(score_ptr + positions, mask=is_here, other=0.0))
        if SHIFT == 24:
            digit = (keys >> SHIFT) + 128  # of a sign, too
        else:
            digit = (keys >> SHIFT) & 255
            is_here &= keys >> (SHIFT + 8) == known
        counts += tl.histogram(digit, _DIGIT, mask=is_here)
    reached = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0) + counts
    best = tl.max(tl.where(reached >= wanted, digits, 0), axis=0)
    wanted -= tl.sum(tl.where(digits > best, counts, 0), axis=0)
    return best - 128 if SHIFT == 24 else known * 256 + best, wanted


@triton.jit
def _least_chosen(score_ptr, num_scores, top_k, BLOCK: tl.constexpr):
    """The key that `top_k` of the scores reach, and how many of those that have just this one are among them. Where
    there are no scores, one that all reach."""
    known, wanted = _next_digit(score_ptr, num_scores, 0, top_k, 24, BLOCK)
    known, wanted = _next_digit(score_ptr, num_scores, known, wanted, 16, BLOCK)
    known, wanted = _next_digit(score_ptr, num_scores, known, wanted, 8, BLOCK)
    return _next_digit(score_ptr, num_scores, known, wanted, 0, BLOCK)


@triton.jit(
    do_not_specialize=["stride_table", "stride_score", "top_k"],
    do_not_specialize_on_alignment=["span_ptr", "len_ptr", "chosen_ptr"],
)
def _choose_kernel(
    score_ptr, table_ptr, span_ptr, len_ptr, chosen_ptr, stride_table, stride_score, top_k, BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    seen = tl.load(len_ptr + row)
    score_ptr += row * stride_score
    table_ptr += tl.load(span_ptr + row).to(tl.int64) * stride_table
    num_scores = tl.where(seen > top_k, seen, 0)
    least, num_equal = _least_chosen(score_ptr, num_scores, top_k, BLOCK)
    chosen_before, equal_before = 0, 0
    for start in range(0, seen, BLOCK):
        positions = start + tl.arange(0, BLOCK)
        is_here = positions < seen
        # Without scores all keys are alike, and there are no more of them than are wanted.
        scored = positions < num_scores
        keys = tl.where(scored, key_of(tl.load(score_ptr + positions, mask=scored, other=0.0)), least)
        is_equal = is_here & (keys == least)
        ranks = equal_before + tl.cumsum(is_equal.to(tl.int32), axis=0)
        is_chosen = is_here & ((keys > least) | (is_equal & (ranks <= num_equal)))
        places = chosen_before + tl.cumsum(is_chosen.to(tl.int32), axis=0) - 1
        blocks = tl.load(table_ptr + positions // BLOCK_SIZE, mask=is_here, other=0)
        tl.store(
            chosen_ptr + row * top_k + places, blocks * BLOCK_SIZE + positions % BLOCK_SIZE, mask=is_chosen
        )
        chosen_before += tl.sum(is_chosen.to(tl.int32), axis=0)
        equal_before += tl.sum(is_equal.to(tl.int32), axis=0)


def choose_positions(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    tables: torch.Tensor,
    seen: SeenRows,
    longest: int,
    chosen: torch.Tensor,
) -> None:
    (num_rows, num_heads, dim), device = query.shape, query.device
    if num_rows == 0:
        return
    scores = torch.empty(num_rows, longest, dtype=torch.float32, device=device)
    tile = index_tile(query.element_size())
    wanted = triton.cdiv(processor(device).num_multiprocessors * _RESIDENT, num_rows)
    _index_kernel[(num_rows, min(triton.cdiv(longest, tile.keys), wanted))](
        query,
        weights,
        cache,
        tables,
        *seen,
        scores,
        tables.stride(0),
        scores.stride(0),
        chosen.shape[1],
        dim**-0.5,
        NUM_HEADS=num_heads,
        DIM=dim,
        BLOCK_SIZE=cache.shape[1],
        BLOCK_HEADS=min(max(triton.next_power_of_2(num_heads), 16), tile.rows),
        BLOCK_KEYS=tile.keys,
        BLOCK_DIM=max(triton.next_power_of_2(dim), 16),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **chained(device),
    )
    _choose_kernel[(num_rows,)](
        scores,
        tables,
        *seen,
        chosen,
        tables.stride(0),
        scores.stride(0),
        chosen.shape[1],
        BLOCK_SIZE=cache.shape[1],
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        **chained(device),
    )
