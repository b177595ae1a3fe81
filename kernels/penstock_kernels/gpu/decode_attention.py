"""Attention of few queries per sequence (decoding, verifying a draft) over long contexts: bound by reading the cache.

A program reads one item of the work map for one key head, with all queries of that head's group, so that every key is
read once. Sequences of one item are finished at once; a second kernel combines the parts of the others.
"""

import triton
import triton.language as tl

from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_math import (
    blocks_of,
    empty_softmax,
    fold,
    load_cached,
    load_queries,
    load_slopes,
    score,
    store_part,
    store_result,
)
from penstock_kernels.gpu.attention_parts import combine, empty_parts
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.tiles import DECODE_KEYS, decode_tile, processor
from penstock_kernels.gpu.work_map import WorkMap


@triton.jit
def _visible(positions, query_positions, tokens, tree_ptr, query_start, query_len, reach,
             HAS_WINDOW: tl.constexpr, HAS_CHUNK: tl.constexpr, HAS_TREE: tl.constexpr):  # fmt: skip
    """[rows, positions]: causal, but for what the tree's bits hide of the positions close before."""
    keys = positions[None, :]
    seen = keys <= query_positions[:, None]
    if HAS_TREE:
        bits = tl.load(tree_ptr + query_start + tokens, mask=tokens < query_len, other=-1)
        distance = query_positions[:, None] - keys
        is_near = (distance >= 0) & (distance < 32)
        shift = tl.where(is_near, distance, 0)
        seen = seen & tl.where(is_near, ((bits[:, None] >> shift) & 1) != 0, True)
    if HAS_WINDOW:
        seen = seen & (keys > query_positions[:, None] - reach)
    if HAS_CHUNK:
        seen = seen & (keys >= (query_positions // reach * reach)[:, None])
    return seen


@triton.jit(do_not_specialize_on_alignment=["query_start_ptr", "context_ptr"])
def _decode_attention_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, query_start_ptr, context_ptr, sink_ptr, slope_ptr, out_ptr,
    stride_query_token, stride_query_head, stride_block, stride_token, stride_kv_head, stride_table,
    scale, soft_cap, reach, key_scale, value_scale, item_ptr, tree_ptr, sum_ptr, stat_ptr, num_kv_heads,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr, HAS_SINK: tl.constexpr, HAS_SLOPES: tl.constexpr, HAS_TREE: tl.constexpr,
    TILE_KEYS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    # The key heads of an item run side by side: their keys are neighbours in memory.
    program, row_tile = tl.program_id(0), tl.program_id(1)
    item, kv_head = (program // num_kv_heads).to(tl.int64), (program % num_kv_heads).to(tl.int64)
    span = tl.load(item_ptr + 4 * item).to(tl.int64)
    if span < 0:
        return
    query_start = tl.load(query_start_ptr + span).to(tl.int64)
    query_len = tl.load(query_start_ptr + span + 1).to(tl.int64) - query_start
    rows = row_tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    if row_tile * BLOCK_ROWS >= query_len * GROUP:
        return
    context_len = tl.load(context_ptr + span)
    # The work map counts in tiles of TILE_KEYS, the loop below in those of this kernel, which may be parts of them.
    first_tile = tl.load(item_ptr + 4 * item + 1) * (TILE_KEYS // BLOCK_KEYS)
    end_tile = tl.load(item_ptr + 4 * item + 2) * (TILE_KEYS // BLOCK_KEYS)
    tokens, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    is_row = tokens < query_len
    columns = tl.arange(0, BLOCK_DIM)
    query = load_queries(query_ptr, query_start, query_len, tokens, heads, columns, stride_query_token,
                         stride_query_head, DIM)  # fmt: skip
    slopes = load_slopes(slope_ptr, heads, is_row, HAS_SLOPES)
    query_positions = context_len - query_len.to(tl.int32) + tokens
    table_ptr += span * stride_table
    key_ptr += kv_head * stride_kv_head
    value_ptr += kv_head * stride_kv_head

    accumulated, largest, total = empty_softmax(BLOCK_ROWS, BLOCK_DIM)
    # The blocks of a tile are read one tile ahead, so that its keys and values can be fetched several tiles ahead.
    blocks = blocks_of(table_ptr, first_tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS), context_len, BLOCK_SIZE)
    for tile in range(first_tile, end_tile):
        positions = tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        key = load_cached(key_ptr, blocks, positions, columns, context_len, stride_block, stride_token,
                          BLOCK_SIZE, DIM, BLOCK_DIM)  # fmt: skip
        value = load_cached(value_ptr, blocks, positions, columns, context_len, stride_block, stride_token,
                            BLOCK_SIZE, DIM, BLOCK_DIM)  # fmt: skip
        blocks = blocks_of(table_ptr, positions + BLOCK_KEYS, context_len, BLOCK_SIZE)
        scores = score(query, key.to(query.dtype), scale * key_scale, soft_cap, slopes, positions, query_positions,
                       HAS_SOFT_CAP, HAS_SLOPES)  # fmt: skip
        seen = _visible(positions, query_positions, tokens, tree_ptr, query_start, query_len, reach,
                        HAS_WINDOW, HAS_CHUNK, HAS_TREE)  # fmt: skip
        scores = tl.where(seen, scores, float("-inf"))
        accumulated, largest, total = fold(scores, value.to(query.dtype), accumulated, largest, total, True)

    # Not before the loop, which has no register to spare.
    part = tl.load(item_ptr + 4 * item + 3).to(tl.int64)
    if part < 0:
        store_result(out_ptr, accumulated, largest, total, sink_ptr, query_start, tokens, heads, is_row,
                     columns, num_kv_heads * GROUP, value_scale, DIM, HAS_SINK)  # fmt: skip
    else:
        part_rows = (part + tokens) * (num_kv_heads * GROUP) + heads
        store_part(sum_ptr, stat_ptr, accumulated, largest, total, part_rows, is_row, columns, DIM)


def decode_attention(call: AttentionCall, work: WorkMap) -> None:
    """Fills the rows of `call.out` that the spans of the work map own."""
    tree, query, limits = call.given.spans.tree, call.query, work.limits
    num_rows = call.group * work.max_query_len
    shared_bytes = processor(query.device).shared_bytes
    tile = decode_tile(call.block_dim, triton.next_power_of_2(num_rows), query.element_size(), shared_bytes)
    parts = empty_parts(query, limits.num_part_tokens)
    _decode_attention_kernel[(limits.num_items * call.num_kv_heads, triton.cdiv(num_rows, tile.rows))](
        *call.arguments(),
        work.items,
        query if tree is None else tree,
        *parts,
        call.num_kv_heads,
        HAS_TREE=tree is not None,
        TILE_KEYS=DECODE_KEYS,
        **call.constants(tile),
        **chained(query.device),
    )
    if limits.num_splits:
        combine(call, work, parts)
