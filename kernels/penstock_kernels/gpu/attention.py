"""Divides the spans of a step among the decode and the prefill kernel, and keeps what the layers share."""

from typing import NamedTuple

import torch
import triton

from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
)
from penstock_kernels.base.upload import upload
from penstock_kernels.gpu import decode_attention as decode
from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.prefill_attention import prefill_attention, prefill_tiles, tile_for
from penstock_kernels.gpu.tiles import DECODE_KEYS, processor
from penstock_kernels.gpu.work_map import WorkMap, work_map

# Decode programs that a multiprocessor holds at once: its registers allow 5 at 92 each. Unmeasured.
_RESIDENT = 4
# Tiles of an item when splits may not depend on the other spans: 1,024 keys. Unmeasured.
_FIXED_TILES = 16


class _Layout(NamedTuple):
    """The spans of a step on the device: [num_spans + 1], [num_spans] and [num_tiles, 2] int32."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    tiles: torch.Tensor
    num_decodes: int


def paged_attention(arguments: AttentionArguments) -> torch.Tensor:
    query, spans = arguments.query, arguments.spans
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    if out.numel() == 0:
        return out
    if isinstance(spans, DecodeSpans):
        _attend_in_graph(arguments, spans, out)
    else:
        _attend_eagerly(arguments, spans, out)
    return out


def _attend_eagerly(arguments: AttentionArguments, spans: AttentionSpans, out: torch.Tensor) -> None:
    window, num_kv_heads, rows = (
        arguments.scoring.window,
        arguments.num_kv_heads,
        tile_for(arguments.query).rows,
    )
    layout = spans.shared(("layout", arguments.group, rows), lambda: _lay_out(spans, arguments.group, rows))
    call = AttentionCall(arguments, layout.query_starts, layout.context_lens, out)
    if layout.num_decodes:
        key = ("work", window, num_kv_heads)
        work = spans.shared(key, lambda: _eager_work(spans, layout, window, num_kv_heads))
        longest = max(length for length in spans.query_lens if length <= MAX_DECODE_LEN)
        decode.decode_attention(call, work, longest)
    if layout.tiles.shape[0]:
        prefill_attention(call, layout.tiles)


def _attend_in_graph(arguments: AttentionArguments, spans: DecodeSpans, out: torch.Tensor) -> None:
    window, num_kv_heads = arguments.scoring.window, arguments.num_kv_heads
    work = spans.shared(("work", window, num_kv_heads), lambda: _graph_work(spans, window, num_kv_heads))
    call = AttentionCall(arguments, spans.query_starts, spans.context_lens, out)
    decode.decode_attention(call, work, spans.max_query_len)


def _lay_out(spans: AttentionSpans, group: int, rows: int) -> _Layout:
    """All of it goes to the device in one copy."""
    starts = spans.query_starts
    prefills = [span for span, query_len in enumerate(spans.query_lens) if query_len > MAX_DECODE_LEN]
    tiles = prefill_tiles(
        prefills,
        [spans.query_lens[span] for span in prefills],
        [spans.context_lens[span] for span in prefills],
        group,
        rows,
    )
    laid_out = torch.tensor([*starts, *spans.context_lens, *tiles], dtype=torch.int32)
    numbers = upload(laid_out, spans.block_tables.device)
    first_tile = len(starts) + len(spans.context_lens)
    num_decodes = sum(0 < query_len <= MAX_DECODE_LEN for query_len in spans.query_lens)
    return _Layout(
        numbers[: len(starts)],
        numbers[len(starts) : first_tile],
        numbers[first_tile:].view(-1, 2),
        num_decodes,
    )


def _eager_work(spans: AttentionSpans, layout: _Layout, window: int | None, num_kv_heads: int) -> WorkMap:
    if spans.unbatched:
        num_items = sum(
            triton.cdiv(context_len, _FIXED_TILES * DECODE_KEYS) + 1
            for query_len, context_len in zip(spans.query_lens, spans.context_lens, strict=True)
            if 0 < query_len <= MAX_DECODE_LEN
        )
    else:
        num_items = max(layout.num_decodes, _wanted_items(spans.block_tables.device, num_kv_heads))
    return work_map(
        layout.query_starts,
        layout.context_lens,
        MAX_DECODE_LEN,
        num_items,
        window,
        may_split=num_items > layout.num_decodes,
        fixed_tiles=_FIXED_TILES if spans.unbatched else 0,
    )


def _graph_work(spans: DecodeSpans, window: int | None, num_kv_heads: int) -> WorkMap:
    num_spans = spans.context_lens.shape[0]
    if spans.unbatched:
        num_items = num_spans * (triton.cdiv(spans.max_context_len, _FIXED_TILES * DECODE_KEYS) + 1)
    else:
        num_items = max(num_spans, _wanted_items(spans.block_tables.device, num_kv_heads))
    return work_map(
        spans.query_starts,
        spans.context_lens,
        spans.max_query_len,
        num_items,
        window,
        may_split=num_items > num_spans,
        fixed_tiles=_FIXED_TILES if spans.unbatched else 0,
    )


def _wanted_items(device: torch.device, num_kv_heads: int) -> int:
    """As many as run at the same time."""
    return processor(device).num_multiprocessors * _RESIDENT // num_kv_heads
