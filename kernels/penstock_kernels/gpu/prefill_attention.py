"""Attention of many queries per sequence: bound by the matrix units, so tiles have 128 rows.

A tile's rows are query tokens times the heads of one key head's group. It walks the keys in up to three phases, of
which only the first and the last need masks:

    positions   0 ..... window or chunk start .. first query of the tile ... last query
    phase                  | left, masked |   middle, all visible   |  diagonal, masked  |

The middle, which is nearly all of a long prompt, can be read through tensor descriptors (`cache_descriptors`).
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.attention_spans import AttentionArguments
from penstock_kernels.gpu.attention_call import AttentionCall, padded_dim
from penstock_kernels.gpu.attention_math import (
    blocks_of,
    empty_softmax,
    fold,
    load_cached,
    load_queries,
    load_slopes,
    score,
    store_result,
)
from penstock_kernels.gpu.cache_descriptors import cache_descriptors, load_tile
from penstock_kernels.gpu.tiles import Tile, prefill_tile, processor


@triton.jit
def _attend(
    query, slopes, accumulated, largest, total, key_ptr, value_ptr, key_descriptor, value_descriptor, kv_head,
    table_ptr, first_tile, end_tile, query_positions, columns, context_len, stride_block, stride_token, scale,
    soft_cap, reach, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    BLOCK_DIM: tl.constexpr, MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
):  # fmt: skip
    """Fold the tiles of one phase. `key_descriptor`, `value_descriptor`: descriptors, or None to read by pointers."""
    # The blocks of a tile are read one tile ahead, so that its keys and values can be fetched several tiles ahead.
    # Through descriptors a tile is a part of one block.
    offsets = tl.arange(0, BLOCK_KEYS) if key_descriptor is None else 0
    blocks = blocks_of(table_ptr, first_tile * BLOCK_KEYS + offsets, context_len, BLOCK_SIZE)
    for tile in range(first_tile, end_tile):
        positions = tile * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
        if key_descriptor is None:
            key = load_cached(key_ptr, blocks, positions, columns, context_len, stride_block, stride_token,
                              BLOCK_SIZE, DIM, BLOCK_DIM)  # fmt: skip
            value = load_cached(value_ptr, blocks, positions, columns, context_len, stride_block, stride_token,
                                BLOCK_SIZE, DIM, BLOCK_DIM)  # fmt: skip
        else:
            key = load_tile(key_descriptor, blocks, kv_head, tile, BLOCK_SIZE, BLOCK_KEYS, BLOCK_DIM)
            value = load_tile(value_descriptor, blocks, kv_head, tile, BLOCK_SIZE, BLOCK_KEYS, BLOCK_DIM)
        blocks = blocks_of(table_ptr, tile * BLOCK_KEYS + offsets + BLOCK_KEYS, context_len, BLOCK_SIZE)
        scores = score(query, key.to(query.dtype), scale, soft_cap, slopes, positions, query_positions,
                       HAS_SOFT_CAP, HAS_SLOPES)  # fmt: skip
        if MASKED:
            seen = positions[None, :] <= query_positions[:, None]
            if HAS_WINDOW:
                seen = seen & (positions[None, :] > query_positions[:, None] - reach)
            if HAS_CHUNK:
                seen = seen & (positions[None, :] >= (query_positions // reach * reach)[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        accumulated, largest, total = fold(scores, value.to(query.dtype), accumulated, largest, total, MASKED)
    return accumulated, largest, total


@triton.jit
def _phases(first_position, last_position, reach, BLOCK_KEYS: tl.constexpr, HAS_WINDOW: tl.constexpr,
            HAS_CHUNK: tl.constexpr):  # fmt: skip
    """The first tile of keys of each phase, and the end of the last. The positions are those of a tile's first query
    and of its last one."""
    end_tile = last_position // BLOCK_KEYS + 1
    diagonal_tile = (first_position + 1) // BLOCK_KEYS
    if HAS_WINDOW or HAS_CHUNK:
        # The first position that the first query of the tile sees, and the first that the last one sees.
        if HAS_CHUNK:
            first_seen, last_seen = first_position // reach * reach, last_position // reach * reach
        else:
            first_seen = tl.maximum(first_position - reach + 1, 0)
            last_seen = tl.maximum(last_position - reach + 1, 0)
        middle_tile = tl.minimum((last_seen + BLOCK_KEYS - 1) // BLOCK_KEYS, end_tile)
        return first_seen // BLOCK_KEYS, middle_tile, diagonal_tile, end_tile
    return 0, 0, diagonal_tile, end_tile


@triton.jit(do_not_specialize_on_alignment=["query_start_ptr", "context_ptr", "tile_ptr"])
def _prefill_attention_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, query_start_ptr, context_ptr, sink_ptr, slope_ptr, out_ptr,
    stride_query_token, stride_query_head, stride_block, stride_token, stride_kv_head, stride_table,
    scale, soft_cap, reach, key_scale, value_scale, tile_ptr, num_kv_heads, key_descriptor, value_descriptor,
    GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_DIM: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CHUNK: tl.constexpr,
    HAS_SOFT_CAP: tl.constexpr, HAS_SINK: tl.constexpr, HAS_SLOPES: tl.constexpr,
):  # fmt: skip
    # The key heads of a tile run side by side, and tiles with much work first.
    program = tl.program_id(0).to(tl.int64)
    tile, kv_head = program // num_kv_heads, program % num_kv_heads
    span = tl.load(tile_ptr + 2 * tile).to(tl.int64)
    if span < 0:
        return
    first_row = tl.load(tile_ptr + 2 * tile + 1)
    query_start = tl.load(query_start_ptr + span)
    query_len = tl.load(query_start_ptr + span + 1) - query_start
    context_len = tl.load(context_ptr + span)
    rows = first_row + tl.arange(0, BLOCK_ROWS)
    tokens = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    columns = tl.arange(0, BLOCK_DIM)
    query = load_queries(query_ptr, query_start, query_len, tokens, heads, columns, stride_query_token,
                         stride_query_head, DIM)  # fmt: skip
    slopes = load_slopes(slope_ptr, heads, tokens < query_len, HAS_SLOPES)
    first_position = context_len - query_len + first_row // GROUP
    last_token = tl.minimum((first_row + BLOCK_ROWS - 1) // GROUP, query_len - 1)
    last_position = context_len - query_len + last_token
    query_positions = context_len - query_len + tokens
    table_ptr += span * stride_table
    key_ptr += kv_head * stride_kv_head
    value_ptr += kv_head * stride_kv_head

    first_tile, middle_tile, diagonal_tile, end_tile = _phases(
        first_position, last_position, reach, BLOCK_KEYS, HAS_WINDOW, HAS_CHUNK)  # fmt: skip
    accumulated, largest, total = empty_softmax(BLOCK_ROWS, BLOCK_DIM)
    if HAS_WINDOW or HAS_CHUNK:
        accumulated, largest, total = _attend(
            query, slopes, accumulated, largest, total, key_ptr, value_ptr, None, None, kv_head, table_ptr,
            first_tile, middle_tile, query_positions, columns, context_len, stride_block, stride_token,
            scale * key_scale, soft_cap, reach, DIM, BLOCK_SIZE, BLOCK_KEYS, BLOCK_DIM, True, HAS_WINDOW, HAS_CHUNK,
            HAS_SOFT_CAP, HAS_SLOPES)  # fmt: skip
    accumulated, largest, total = _attend(
        query, slopes, accumulated, largest, total, key_ptr, value_ptr, key_descriptor, value_descriptor, kv_head,
        table_ptr, middle_tile, diagonal_tile, query_positions, columns, context_len, stride_block, stride_token,
        scale * key_scale, soft_cap, reach, DIM, BLOCK_SIZE, BLOCK_KEYS, BLOCK_DIM, False, HAS_WINDOW, HAS_CHUNK,
        HAS_SOFT_CAP, HAS_SLOPES)  # fmt: skip
    accumulated, largest, total = _attend(
        query, slopes, accumulated, largest, total, key_ptr, value_ptr, None, None, kv_head, table_ptr,
        tl.maximum(middle_tile, diagonal_tile), end_tile, query_positions, columns, context_len, stride_block,
        stride_token, scale * key_scale, soft_cap, reach, DIM, BLOCK_SIZE, BLOCK_KEYS, BLOCK_DIM, True, HAS_WINDOW,
        HAS_CHUNK, HAS_SOFT_CAP, HAS_SLOPES)  # fmt: skip

    store_result(out_ptr, accumulated, largest, total, sink_ptr, query_start, tokens, heads, tokens < query_len,
                 columns, num_kv_heads * GROUP, value_scale, DIM, HAS_SINK)  # fmt: skip


def tile_for(given: AttentionArguments) -> Tile:
    """The tile for these queries and keys."""
    query = given.query
    is_crowded = given.scoring.slopes is not None and given.key_cache.dtype != query.dtype
    shared_bytes = processor(query.device).shared_bytes
    return prefill_tile(padded_dim(query), query.element_size(), shared_bytes, is_crowded)


def prefill_attention(call: AttentionCall, tiles: torch.Tensor) -> None:
    """Fills the rows of `call.out` that the tiles cover. tiles: [num_tiles, 2] int32 on the device, from
    `prefill_tiles` or `prefill_map`; -1 for idle ones."""
    tile = tile_for(call.given)
    _prefill_attention_kernel[(tiles.shape[0] * call.num_kv_heads,)](
        *call.arguments(), tiles, call.num_kv_heads, *cache_descriptors(call, tile), **call.constants(tile)
    )
