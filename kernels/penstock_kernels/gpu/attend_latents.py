"""Attention in the space of the latents: every head of a token is a row, and all rows read the same keys.

A row's query is what went down to the latents and, apart from it, its rotated numbers. A tile of latents is read once:
it is keys, beside what is rotated of them, and values. A program has some rows and an item of the work map, or some
rows of a prompt and all that they see.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_math import LOG2_E, blocks_of, fold, load_cached, store_part, store_result
from penstock_kernels.gpu.attention_parts import Parts, combine, empty_parts
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.tiles import DECODE_KEYS, Tile, latent_tile, processor
from penstock_kernels.gpu.work_map import WorkMap


@triton.jit
def _attend(
    down, rotated, cache_ptr, table_ptr, first_key, end_key, context_len, query_positions, rank_columns, rope_columns,
    scale, RANK: tl.constexpr, ROPE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_ROPE: tl.constexpr,
):  # fmt: skip
    """Attention of the rows to these positions."""
    WIDTH: tl.constexpr = RANK + ROPE_DIM
    accumulated = tl.zeros([BLOCK_ROWS, BLOCK_RANK], tl.float32)
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    # The blocks of a tile are read one tile ahead, so that its latents can be fetched several tiles ahead.
    blocks = blocks_of(table_ptr, first_key + tl.arange(0, BLOCK_KEYS), context_len, BLOCK_SIZE)
    for start in range(first_key, end_key, BLOCK_KEYS):
        positions = start + tl.arange(0, BLOCK_KEYS)
        latents = load_cached(cache_ptr, blocks, positions, rank_columns, context_len, BLOCK_SIZE * WIDTH, WIDTH,
                              BLOCK_SIZE, RANK, BLOCK_RANK)  # fmt: skip
        shared = load_cached(cache_ptr + RANK, blocks, positions, rope_columns, context_len, BLOCK_SIZE * WIDTH,
                             WIDTH, BLOCK_SIZE, ROPE_DIM, BLOCK_ROPE)  # fmt: skip
        blocks = blocks_of(table_ptr, positions + BLOCK_KEYS, context_len, BLOCK_SIZE)
        scores = tl.dot(down, tl.trans(latents), input_precision="ieee")
        scores = tl.dot(rotated, tl.trans(shared), scores, input_precision="ieee") * (scale * LOG2_E)
        seen = positions[None, :] <= query_positions[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        accumulated, largest, total = fold(scores, latents, accumulated, largest, total, True)
    return accumulated, largest, total


@triton.jit(
    do_not_specialize=["num_row_tiles"],
    do_not_specialize_on_alignment=["query_start_ptr", "context_ptr", "work_ptr"],
)
def _latent_attention_kernel(
    down_ptr, rotated_ptr, cache_ptr, table_ptr, query_start_ptr, context_ptr, work_ptr, sum_ptr, stat_ptr, out_ptr,
    stride_token, stride_head, stride_table, scale, num_row_tiles, NUM_HEADS: tl.constexpr, RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_KEYS: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, BLOCK_RANK: tl.constexpr, BLOCK_ROPE: tl.constexpr, IS_PROMPT: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    # The tiles of rows of an item run side by side: what one of them reads is then in the chip's cache for the others.
    program = tl.program_id(0)
    work_ptr += program // num_row_tiles * (2 if IS_PROMPT else 4)
    span = tl.load(work_ptr).to(tl.int64)
    if span < 0:
        return
    query_start = tl.load(query_start_ptr + span)
    query_len = tl.load(query_start_ptr + span + 1) - query_start
    # The compiler must be told that it is a multiple: it cannot know that of a prompt, and then spills.
    first_row = tl.multiple_of(
        tl.load(work_ptr + 1) if IS_PROMPT else program % num_row_tiles * BLOCK_ROWS, BLOCK_ROWS
    )
    if first_row >= query_len * NUM_HEADS:
        return
    context_len = tl.load(context_ptr + span)
    if IS_PROMPT:
        last_token = tl.minimum((first_row + BLOCK_ROWS - 1) // NUM_HEADS, query_len - 1)
        first_key, end_key = 0, context_len - query_len + last_token + 1
    else:
        first_key = tl.load(work_ptr + 1) * TILE_KEYS
        end_key = tl.minimum(tl.load(work_ptr + 2) * TILE_KEYS, context_len)
    rows = first_row + tl.arange(0, BLOCK_ROWS)
    tokens, heads = rows // NUM_HEADS, rows % NUM_HEADS
    is_row = tokens < query_len
    rank_columns, rope_columns = tl.arange(0, BLOCK_RANK), tl.arange(0, BLOCK_ROPE)
    rank_mask = is_row[:, None] & (rank_columns < RANK)[None, :]
    down_rows = (query_start.to(tl.int64) * NUM_HEADS + rows) * RANK
    down = tl.load(down_ptr + down_rows[:, None] + rank_columns[None, :], mask=rank_mask, other=0.0)
    rotated_rows = (query_start + tokens).to(tl.int64) * stride_token + heads * stride_head
    rotated = tl.load(rotated_ptr + rotated_rows[:, None] + rope_columns[None, :],
                      mask=is_row[:, None] & (rope_columns < ROPE_DIM)[None, :], other=0.0)  # fmt: skip
    accumulated, largest, total = _attend(
        down, rotated, cache_ptr, table_ptr + span * stride_table, first_key, end_key, context_len,
        context_len - query_len + tokens, rank_columns, rope_columns, scale, RANK, ROPE_DIM, BLOCK_SIZE, BLOCK_ROWS,
        BLOCK_KEYS, BLOCK_RANK, BLOCK_ROPE)  # fmt: skip
    # A prompt has no parts. If the compiler knew that, it would keep the addresses of the result through the loop.
    part = -end_key if IS_PROMPT else tl.load(work_ptr + 3)
    if part < 0:
        store_result(out_ptr, accumulated, largest, total, down_ptr, query_start, tokens, heads, is_row, rank_columns,
                     NUM_HEADS, 1.0, RANK, False)  # fmt: skip
    else:
        part_rows = (part + tokens).to(tl.int64) * NUM_HEADS + heads
        store_part(sum_ptr, stat_ptr, accumulated, largest, total, part_rows, is_row, rank_columns, RANK)


def attend_latents(call: AttentionCall, rotated: torch.Tensor, work: WorkMap) -> None:
    """Fills the rows of `call.out` that the spans of the work map own. `call`: of queries in the space of the latents,
    [num_tokens, num_heads, rank]; rotated: the rest of the queries, [num_tokens, num_heads, rope_dim]."""
    tile = tile_of(call.query, work.max_query_len)
    num_row_tiles = triton.cdiv(call.group * work.max_query_len, tile.rows)
    parts = empty_parts(call.query, work.limits.num_part_tokens)
    _launch(call, rotated, work.items, num_row_tiles, tile, parts)
    if work.limits.num_splits:
        combine(call, work, parts)


def attend_prompts(call: AttentionCall, rotated: torch.Tensor, tiles: torch.Tensor) -> None:
    """Fills the rows of `call.out` that the tiles cover: those of `prefill_tiles` or `prefill_map`."""
    _launch(call, rotated, tiles, 1, prompt_tile(call.query), empty_parts(call.query, 0))


def tile_of(query: torch.Tensor, query_len: int) -> Tile:
    """The tile for spans of `query_len` tokens."""
    return latent_tile(query.shape[1] * query_len, query.element_size(), processor(query.device).shared_bytes)


def prompt_tile(query: torch.Tensor) -> Tile:
    """The tile for spans that fill the tallest one."""
    return latent_tile(2**30, query.element_size(), processor(query.device).shared_bytes)


def _launch(
    call: AttentionCall,
    rotated: torch.Tensor,
    work: torch.Tensor,
    num_row_tiles: int,
    tile: Tile,
    parts: Parts,
) -> None:
    """work: items of a work map, or tiles of prompts, which are of one tile of rows each."""
    cache, tables = call.given.key_cache, call.given.spans.block_tables
    rank, rope_dim = call.query.shape[2], rotated.shape[2]
    _latent_attention_kernel[(len(work) * num_row_tiles,)](
        call.query,
        rotated,
        cache,
        tables,
        call.query_starts,
        call.context_lens,
        work,
        *parts,
        call.out,
        *rotated.stride()[:2],
        tables.stride(0),
        call.scoring.scale,
        num_row_tiles,
        NUM_HEADS=call.group,
        RANK=rank,
        ROPE_DIM=rope_dim,
        BLOCK_SIZE=cache.shape[1],
        TILE_KEYS=DECODE_KEYS,
        BLOCK_ROWS=tile.rows,
        BLOCK_KEYS=tile.keys,
        BLOCK_RANK=max(triton.next_power_of_2(rank), 16),
        BLOCK_ROPE=max(triton.next_power_of_2(rope_dim), 16),
        IS_PROMPT=work.shape[1] == 2,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
        **chained(call.query.device),
    )
