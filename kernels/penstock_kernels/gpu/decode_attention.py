"""Attention of few queries per sequence (decoding, verifying a draft) over long contexts: bound by reading the cache.

A program reads one item of the work map for one key head, with all queries of that head's group, so that every key is
read once. Sequences of one item are finished at once; the parts of others meet in a second kernel.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.attention_math import LOG2_E, add_sink, fold, load_cached, score
from penstock_kernels.gpu.tiles import decode_tile
from penstock_kernels.gpu.work_map import WorkMap


@triton.jit
def _visible(positions, query_positions, tokens, first_new, tree_ptr, query_start, query_len, window,
             HAS_WINDOW: tl.constexpr, HAS_TREE: tl.constexpr):  # fmt: skip
    """[rows, positions]: causal, or what the tree's bits say of the span's own tokens."""
    keys = positions[None, :]
    if HAS_TREE:
        bits = tl.load(tree_ptr + query_start + tokens, mask=tokens < query_len, other=0)
        is_new = keys >= first_new
        shift = tl.where(is_new, keys - first_new, 0)
        seen = tl.where(is_new, ((bits[:, None] >> shift) & 1) != 0, True) & (keys < first_new + query_len)
    else:
        seen = keys <= query_positions[:, None]
    if HAS_WINDOW:
        seen = seen & (keys > query_positions[:, None] - window)
    return seen


@triton.jit
def _decode_attention_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    query_start_ptr,
    context_ptr,
    item_ptr,
    split_ptr,
    sink_ptr,
    tree_ptr,
    out_ptr,
    partial_ptr,
    stat_ptr,
    stride_query_token,
    stride_query_head,
    stride_block,
    stride_token,
    stride_kv_head,
    stride_table,
    scale,
    soft_cap,
    window,
    key_scale,
    value_scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr,
    HAS_SINK: tl.constexpr,
    HAS_TREE: tl.constexpr,
):
    item, kv_head, row_tile = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    span = tl.load(item_ptr + 3 * item).to(tl.int64)
    if span < 0:
        return
    query_start = tl.load(query_start_ptr + span).to(tl.int64)
    query_len = tl.load(query_start_ptr + span + 1).to(tl.int64) - query_start
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    if row_tile * BLOCK_ROWS >= query_len * GROUP:
        return
    context_len = tl.load(context_ptr + span)
    first_tile = tl.load(item_ptr + 3 * item + 1)
    end_tile = tl.load(item_ptr + 3 * item + 2)
    tokens = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    columns = tl.arange(0, BLOCK_DIM)
    row_mask = (tokens < query_len)[:, None] & (columns < DIM)[None, :]
    query_rows = (query_start + tokens) * stride_query_token + heads * stride_query_head
    query = tl.load(query_ptr + query_rows[:, None] + columns[None, :], mask=row_mask, other=0.0)
    first_new = context_len - query_len.to(tl.int32)
    query_positions = first_new + tokens
    table_ptr += span * stride_table
    key_ptr += kv_head * stride_kv_head
    value_ptr += kv_head * stride_kv_head

    accumulated = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    for tile in range(first_tile, end_tile):
        positions = tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        key = load_cached(key_ptr, table_ptr, positions, columns, context_len, stride_block, stride_token,
                          BLOCK_SIZE, DIM, BLOCK_DIM, True)  # fmt: skip
        value = load_cached(value_ptr, table_ptr, positions, columns, context_len, stride_block, stride_token,
                            BLOCK_SIZE, DIM, BLOCK_DIM, True)  # fmt: skip
        scores = score(query, key.to(query.dtype), scale * key_scale, soft_cap, HAS_SOFT_CAP)
        seen = _visible(positions, query_positions, tokens, first_new, tree_ptr, query_start, query_len, window,
                        HAS_WINDOW, HAS_TREE)  # fmt: skip
        scores = tl.where(seen, scores, float("-inf"))
        accumulated, largest, total = fold(scores, value.to(query.dtype), accumulated, largest, total, True)

    num_splits = tl.load(split_ptr + 2 * span + 1)
    if num_splits == 1:
        if HAS_SINK:
            sink = tl.load(sink_ptr + heads, mask=tokens < query_len, other=0.0).to(tl.float32) * LOG2_E
            decay, total = add_sink(largest, total, sink)
            accumulated = accumulated * decay[:, None]
        result = accumulated * (value_scale / tl.maximum(total, 1e-37))[:, None]
        num_heads = tl.num_programs(1) * GROUP
        out_rows = ((query_start + tokens) * num_heads + heads) * DIM
        tl.store(
            out_ptr + out_rows[:, None] + columns[None, :], result.to(out_ptr.dtype.element_ty), mask=row_mask
        )
    else:
        num_rows = tl.num_programs(2) * BLOCK_ROWS
        partial_rows = (item * tl.num_programs(1) + kv_head) * num_rows + rows
        tl.store(partial_ptr + partial_rows[:, None] * DIM + columns[None, :], accumulated, mask=row_mask)
        tl.store(stat_ptr + 2 * partial_rows, largest, mask=tokens < query_len)
        tl.store(stat_ptr + 2 * partial_rows + 1, total, mask=tokens < query_len)


@triton.jit
def _combine_kernel(
    partial_ptr,
    stat_ptr,
    query_start_ptr,
    split_ptr,
    sink_ptr,
    out_ptr,
    num_rows,
    value_scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    HAS_SINK: tl.constexpr,
):
    """Rows of one span and key head: the parts, each weighted by its share of the softmax, always in order."""
    span, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    first_item = tl.load(split_ptr + 2 * span).to(tl.int64)
    num_splits = tl.load(split_ptr + 2 * span + 1)
    if num_splits <= 1:
        return
    query_start = tl.load(query_start_ptr + span).to(tl.int64)
    query_len = tl.load(query_start_ptr + span + 1).to(tl.int64) - query_start
    rows = tl.program_id(2) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    is_row = tokens < query_len
    columns = tl.arange(0, BLOCK_DIM)
    row_mask = is_row[:, None] & (columns < DIM)[None, :]
    accumulated = tl.zeros([BLOCK_ROWS, BLOCK_DIM], tl.float32)
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    for split in range(num_splits):
        part = ((first_item + split) * tl.num_programs(1) + kv_head) * num_rows + rows
        part_largest = tl.load(stat_ptr + 2 * part, mask=is_row, other=float("-inf"))
        part_total = tl.load(stat_ptr + 2 * part + 1, mask=is_row, other=0.0)
        values = tl.load(partial_ptr + part[:, None] * DIM + columns[None, :], mask=row_mask, other=0.0)
        new_largest = tl.maximum(largest, part_largest)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        decay, weight = tl.exp2(largest - shift), tl.exp2(part_largest - shift)
        accumulated = accumulated * decay[:, None] + values * weight[:, None]
        total = total * decay + part_total * weight
        largest = new_largest
    if HAS_SINK:
        sink = tl.load(sink_ptr + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
        decay, total = add_sink(largest, total, sink)
        accumulated = accumulated * decay[:, None]
    result = accumulated * (value_scale / tl.maximum(total, 1e-37))[:, None]
    out_rows = ((query_start + tokens) * tl.num_programs(1) * GROUP + heads) * DIM
    tl.store(
        out_ptr + out_rows[:, None] + columns[None, :], result.to(out_ptr.dtype.element_ty), mask=row_mask
    )


class Scoring(NamedTuple):
    """How scores are made, for both attention kernels. sinks: [num_heads] float32."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0


class DecodeRows(NamedTuple):
    """The spans of a decode call, on the device. query_starts: [num_spans + 1] int32, context_lens: [num_spans] int32,
    block_tables: [num_spans, max_blocks] int32; tree: [num_tokens] int32, bit i of a token's number says that it sees
    its span's token i."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    max_query_len: int
    tree: torch.Tensor | None = None


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    rows: DecodeRows,
    work: WorkMap,
    scoring: Scoring,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out`, contiguous and like query, that the spans own."""
    dim, num_kv_heads, block_size = query.shape[2], key_cache.shape[2], key_cache.shape[1]
    group, num_items = query.shape[1] // num_kv_heads, work.items.shape[0]
    block_dim = max(triton.next_power_of_2(dim), 16)
    tile = decode_tile(block_dim, triton.next_power_of_2(group * rows.max_query_len), query.element_size())
    row_tiles = triton.cdiv(group * rows.max_query_len, tile.rows)
    num_rows = row_tiles * tile.rows
    parts = (num_items, num_kv_heads, num_rows) if work.may_split else (0, 0, 0)
    partial = torch.empty((*parts, dim), dtype=torch.float32, device=query.device)
    stats = torch.empty((*parts, 2), dtype=torch.float32, device=query.device)
    sinks = query if scoring.sinks is None else scoring.sinks
    _decode_attention_kernel[(num_items, num_kv_heads, row_tiles)](
        query,
        key_cache,
        value_cache,
        rows.block_tables,
        rows.query_starts,
        rows.context_lens,
        work.items,
        work.splits,
        sinks,
        query if rows.tree is None else rows.tree,
        out,
        partial,
        stats,
        query.stride(0),
        query.stride(1),
        key_cache.stride(0),
        key_cache.stride(1),
        key_cache.stride(2),
        rows.block_tables.stride(0),
        scoring.scale,
        scoring.soft_cap or 1.0,
        scoring.window or 0,
        scoring.key_scale,
        scoring.value_scale,
        GROUP=group,
        DIM=dim,
        BLOCK_SIZE=block_size,
        BLOCK_ROWS=tile.rows,
        BLOCK_KEYS=tile.keys,
        BLOCK_DIM=block_dim,
        HAS_WINDOW=scoring.window is not None,
        HAS_SOFT_CAP=scoring.soft_cap is not None,
        HAS_SINK=scoring.sinks is not None,
        HAS_TREE=rows.tree is not None,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    if work.may_split:
        _combine(partial, stats, rows, work, scoring, sinks, out, group)


# Rows of a program of the combination. Unmeasured.
COMBINE_ROWS = 4


def _combine(
    partial: torch.Tensor,
    stats: torch.Tensor,
    rows: DecodeRows,
    work: WorkMap,
    scoring: Scoring,
    sinks: torch.Tensor,
    out: torch.Tensor,
    group: int,
) -> None:
    _, num_kv_heads, num_rows, dim = partial.shape
    grid = (work.splits.shape[0], num_kv_heads, triton.cdiv(group * rows.max_query_len, COMBINE_ROWS))
    _combine_kernel[grid](
        partial,
        stats,
        rows.query_starts,
        work.splits,
        sinks,
        out,
        num_rows,
        scoring.value_scale,
        GROUP=group,
        DIM=dim,
        BLOCK_ROWS=COMBINE_ROWS,
        BLOCK_DIM=triton.next_power_of_2(dim),
        HAS_SINK=scoring.sinks is not None,
        num_warps=4,
    )
