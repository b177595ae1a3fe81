"""Attention of few queries per sequence (decoding, verifying a draft) over long contexts: bound by reading the cache.

A program reads one item of the work map for one key head, with all queries of that head's group, so that every key is
read once. Sequences of one item are finished at once; a second kernel combines the parts of the others.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_math import fold, load_cached, score, store_result
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
    query_ptr, key_ptr, value_ptr, table_ptr, query_start_ptr, context_ptr, sink_ptr, out_ptr,
    stride_query_token, stride_query_head, stride_block, stride_token, stride_kv_head, stride_table,
    scale, soft_cap, window, key_scale, value_scale, item_ptr, split_ptr, tree_ptr, partial_ptr, stat_ptr,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_SOFT_CAP: tl.constexpr,
    HAS_SINK: tl.constexpr, HAS_TREE: tl.constexpr,
):  # fmt: skip
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
        store_result(out_ptr, accumulated, largest, total, sink_ptr, query_start, tokens, heads, tokens < query_len,
                     columns, tl.num_programs(1) * GROUP, value_scale, DIM, HAS_SINK)  # fmt: skip
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
    store_result(out_ptr, accumulated, largest, total, sink_ptr, query_start, tokens, heads, is_row,
                 columns, tl.num_programs(1) * GROUP, value_scale, DIM, HAS_SINK)  # fmt: skip


# Rows of a program of the combination. Unmeasured.
COMBINE_ROWS = 4


class _Parts(NamedTuple):
    """Of sequences that several items read: sums of values, and each row's largest score and total weight."""

    sums: torch.Tensor  # [num_items, num_kv_heads, num_rows, head_dim] float32
    stats: torch.Tensor  # [num_items, num_kv_heads, num_rows, 2] float32


def decode_attention(call: AttentionCall, work: WorkMap, max_query_len: int) -> None:
    """Fills the rows of `call.out` that spans of at most max_query_len tokens own."""
    tree = call.given.spans.tree
    query, num_items, num_rows = call.query, work.items.shape[0], call.group * max_query_len
    tile = decode_tile(call.block_dim, triton.next_power_of_2(num_rows), query.element_size())
    row_tiles = triton.cdiv(num_rows, tile.rows)
    shape = (num_items, call.num_kv_heads, row_tiles * tile.rows) if work.may_split else (0, 0, 0)
    parts = _Parts(
        *(
            torch.empty((*shape, size), dtype=torch.float32, device=query.device)
            for size in (query.shape[2], 2)
        )
    )
    _decode_attention_kernel[(num_items, call.num_kv_heads, row_tiles)](
        *call.arguments(),
        work.items,
        work.splits,
        query if tree is None else tree,
        *parts,
        HAS_TREE=tree is not None,
        **call.constants(tile),
    )
    if work.may_split:
        _combine(call, work, parts, num_rows)


def _combine(call: AttentionCall, work: WorkMap, parts: _Parts, num_rows: int) -> None:
    dim = call.query.shape[2]
    _combine_kernel[(work.splits.shape[0], call.num_kv_heads, triton.cdiv(num_rows, COMBINE_ROWS))](
        *parts,
        call.query_starts,
        work.splits,
        call.sinks,
        call.out,
        parts.sums.shape[2],
        call.scoring.value_scale,
        GROUP=call.group,
        DIM=dim,
        BLOCK_ROWS=COMBINE_ROWS,
        BLOCK_DIM=triton.next_power_of_2(dim),
        HAS_SINK=call.scoring.sinks is not None,
        num_warps=4,
    )
