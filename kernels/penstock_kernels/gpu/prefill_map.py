"""The tiles of prefill attention: made on the host, or for graphs on the device, as the host then does not know which
spans are prompts. There their number is a bound that the host knows, so the grid never changes.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.attention_spans import DecodeSpans
from penstock_kernels.gpu.work_map import block_of

# Tiles that are compared with all others at the same time.
_AT_ONCE = 16


def prefill_tiles(
    spans: list[int], query_lens: list[int], context_lens: list[int], group: int, rows: int
) -> list[int]:
    """Span and first row of every tile, flat, the longest work first: the last tiles to start are then short."""
    tiles = [
        (context_len - query_len + min((first + rows - 1) // group + 1, query_len), span, first)
        for span, query_len, context_len in zip(spans, query_lens, context_lens, strict=True)
        for first in range(0, query_len * group, rows)
    ]
    tiles.sort(key=lambda tile: -tile[0])
    return [number for _, span, first in tiles for number in (span, first)]


@triton.jit
def _work_of(first, query_len, context_len, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Positions that the last token of a tile sees, and -1 where there is no tile."""
    end = tl.minimum((first + ROWS - 1) // GROUP + 1, query_len)
    return tl.where(query_len > 0, context_len - query_len + end, -1)


@triton.jit
def _tiles_at(tiles, query_start_ptr, context_ptr, span_ends, spans, num_spans, ROWS: tl.constexpr,
              GROUP: tl.constexpr):  # fmt: skip
    """Span, first row and work of some tiles in the order of spans. span_ends: tiles up to the end of each span."""
    before = span_ends[None, :] <= tiles[:, None]
    span = tl.sum(before.to(tl.int32), axis=1)
    is_tile = span < num_spans
    first_tile = tl.max(tl.where(before, span_ends[None, :], 0), axis=1)
    start = tl.load(query_start_ptr + span, mask=is_tile, other=0)
    query_len = tl.load(query_start_ptr + span + 1, mask=is_tile, other=0) - start
    context_len = tl.load(context_ptr + span, mask=is_tile, other=0)
    first = (tiles - first_tile) * ROWS
    return tl.where(is_tile, span, -1), first, _work_of(first, query_len, context_len, ROWS, GROUP)


@triton.jit(
    do_not_specialize=["num_spans", "num_tiles", "max_query_len"],
    do_not_specialize_on_alignment=["query_start_ptr", "context_ptr"],
)
def _prefill_map_kernel(query_start_ptr, context_ptr, tile_ptr, num_spans, num_tiles, max_query_len,
                        ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_SPANS: tl.constexpr,
                        AT_ONCE: tl.constexpr):  # fmt: skip
    """A program places some tiles: behind those that have more work, and those before them that have as much."""
    spans = tl.arange(0, BLOCK_SPANS)
    is_span = spans < num_spans
    starts = tl.load(query_start_ptr + spans, mask=is_span, other=0)
    query_lens = tl.load(query_start_ptr + spans + 1, mask=is_span, other=0) - starts
    context_lens = tl.load(context_ptr + spans, mask=is_span, other=0)
    is_prompt = (query_lens > max_query_len) & (context_lens > 0)
    span_ends = tl.cumsum(tl.where(is_prompt, (query_lens * GROUP + ROWS - 1) // ROWS, 0), axis=0)
    mine = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    span, first, work = _tiles_at(
        mine, query_start_ptr, context_ptr, span_ends, spans, num_spans, ROWS, GROUP)  # fmt: skip
    place = tl.zeros([AT_ONCE], tl.int32)
    for begin in range(0, num_tiles, AT_ONCE):
        others = begin + tl.arange(0, AT_ONCE)
        _, _, other_work = _tiles_at(
            others, query_start_ptr, context_ptr, span_ends, spans, num_spans, ROWS, GROUP)  # fmt: skip
        is_before = (other_work[None, :] > work[:, None]) | (
            (other_work[None, :] == work[:, None]) & (others[None, :] < mine[:, None]))  # fmt: skip
        place += tl.sum(is_before.to(tl.int32), axis=1)
    is_mine = (mine < num_tiles) & (place < num_tiles)
    tl.store(tile_ptr + 2 * place, span, mask=is_mine)
    tl.store(tile_ptr + 2 * place + 1, first, mask=is_mine)


def prefill_map(spans: DecodeSpans, num_tokens: int, group: int, rows: int) -> torch.Tensor:
    """[num_tiles, 2] int32: span and first row of every tile, the longest work first; -1 for tiles that are left over.

    Of the spans that are longer than `max_query_len`; `num_tokens`: of all spans, and rows behind them.
    """
    num_spans, device = spans.context_lens.shape[0], spans.context_lens.device
    num_tiles = num_tokens * group // rows + spans.num_prompts
    block = block_of(num_spans)
    tiles = torch.empty((num_tiles, 2), dtype=torch.int32, device=device)
    _prefill_map_kernel[(triton.cdiv(num_tiles, _AT_ONCE),)](
        spans.query_starts,
        spans.context_lens,
        tiles,
        num_spans,
        num_tiles,
        spans.max_query_len,
        ROWS=rows,
        GROUP=group,
        BLOCK_SPANS=block,
        AT_ONCE=_AT_ONCE,
        # The spans are compared with 16 tiles at the same time: 1,024 spill with fewer.
        num_warps=4 if block < 1024 else 16,
    )
    return tiles
