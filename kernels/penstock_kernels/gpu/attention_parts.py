"""The parts of sequences that several programs read, and the kernel that combines them."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_math import LOG2_E, add_sink
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.tiles import DECODE_KEYS
from penstock_kernels.gpu.work_limits import WorkLimits
from penstock_kernels.gpu.work_map import WorkMap

# Parts that a program of the combination reads at the same time. Unmeasured.
_PARTS_AT_ONCE = 16


class Parts(NamedTuple):
    """Sums of values, and each row's largest score and total weight. Item i of a span has its query tokens at
    `first + i * query_len`, where the work map says `first`."""

    sums: torch.Tensor  # [num_part_tokens, num_heads, head_dim] float32
    stats: torch.Tensor  # [num_part_tokens, num_heads, 2] float32


@triton.jit(do_not_specialize_on_alignment=["query_start_ptr"])
def _combine_kernel(
    sum_ptr,
    stat_ptr,
    query_start_ptr,
    split_ptr,
    sink_ptr,
    out_ptr,
    value_scale,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_ALL: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
    HAS_SINK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One row: its parts, each weighted by its share of the softmax. BLOCK_ALL: as many as a span may have."""
    begin(CHAINED)
    split, head, token = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    span = tl.load(split_ptr + 3 * split)
    if span < 0:
        return
    query_start = tl.load(query_start_ptr + span).to(tl.int64)
    query_len = tl.load(query_start_ptr + span + 1).to(tl.int64) - query_start
    if token >= query_len:
        return
    num_heads = tl.num_programs(1)
    first_row = (tl.load(split_ptr + 3 * split + 1).to(tl.int64) + token) * num_heads + head
    num_parts = tl.load(split_ptr + 3 * split + 2)
    stride = query_len * num_heads
    everything = tl.arange(0, BLOCK_ALL)
    stats = stat_ptr + 2 * (first_row + everything * stride)
    scores = tl.load(stats, mask=everything < num_parts, other=float("-inf"))
    totals = tl.load(stats + 1, mask=everything < num_parts, other=0.0)
    # Finite: the part with the row's own position has it.
    largest = tl.max(scores, axis=0)
    total = tl.sum(totals * tl.exp2(scores - largest), axis=0)
    columns = tl.arange(0, BLOCK_DIM)
    accumulated = tl.zeros([BLOCK_DIM], tl.float32)
    for start in range(0, num_parts, BLOCK_PARTS):
        parts = start + tl.arange(0, BLOCK_PARTS)
        rows = first_row + parts * stride
        is_part = parts < num_parts
        weights = tl.exp2(tl.load(stat_ptr + 2 * rows, mask=is_part, other=float("-inf")) - largest)
        sums = tl.load(sum_ptr + rows[:, None] * DIM + columns[None, :],
                       mask=is_part[:, None] & (columns < DIM)[None, :], other=0.0)  # fmt: skip
        accumulated += tl.sum(sums * weights[:, None], axis=0)
    if HAS_SINK:
        sink = tl.load(sink_ptr + head).to(tl.float32) * LOG2_E
        decay, total = add_sink(largest, total, sink)
        accumulated = accumulated * decay
    result = accumulated * (value_scale / tl.maximum(total, 1e-37))
    out_ptrs = out_ptr + ((query_start + token) * num_heads + head) * DIM + columns
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=columns < DIM)


def empty_parts(query: torch.Tensor, num_part_tokens: int) -> Parts:
    """Memory for the parts of one layer."""
    rows = (num_part_tokens, query.shape[1])
    sums, stats = (
        torch.empty((*rows, size), dtype=torch.float32, device=query.device) for size in (query.shape[2], 2)
    )
    return Parts(sums, stats)


def _most_parts(call: AttentionCall, limits: WorkLimits) -> int:
    """The most parts that a span may have in any step, so that long contexts make no variant of their own."""
    if not limits.fixed_tiles:
        return limits.resident
    spans = call.given.spans
    tiles = triton.cdiv(spans.block_tables.shape[1] * spans.block_size, DECODE_KEYS)
    most: int = triton.cdiv(tiles, limits.fixed_tiles)
    return most


def combine(call: AttentionCall, work: WorkMap, parts: Parts) -> None:
    """Fills the rows of `call.out` whose spans have several items."""
    _, num_heads, dim = call.query.shape
    _combine_kernel[(work.limits.num_splits, num_heads, work.max_query_len)](
        *parts,
        call.query_starts,
        work.splits,
        call.sinks,
        call.out,
        call.scoring.value_scale,
        DIM=dim,
        BLOCK_DIM=triton.next_power_of_2(dim),
        BLOCK_ALL=triton.next_power_of_2(_most_parts(call, work.limits)),
        BLOCK_PARTS=_PARTS_AT_ONCE,
        HAS_SINK=call.scoring.sinks is not None,
        num_warps=4,
        **chained(call.query.device),
    )
