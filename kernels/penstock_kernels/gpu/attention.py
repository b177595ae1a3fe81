"""Divides the spans of a step among the decode and the prefill kernel, and keeps what the layers share."""

from typing import NamedTuple

import torch

from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Reach,
)
from penstock_kernels.base.upload import upload
from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.decode_attention import decode_attention
from penstock_kernels.gpu.prefill_attention import prefill_attention, prefill_tiles, tile_for
from penstock_kernels.gpu.prefill_map import prefill_map
from penstock_kernels.gpu.tiles import processor
from penstock_kernels.gpu.work_limits import (
    WorkLimits,
    bounded_limits,
    fixed_limits,
    fixed_tiles,
    known_limits,
    most_part_tokens,
    most_tiles,
    num_tiles,
    parts_bytes,
    resident_items,
)
from penstock_kernels.gpu.work_map import WorkMap, work_map


class _Layout(NamedTuple):
    """The spans of a step on the device: [num_spans + 1], [num_spans] and [num_tiles, 2] int32."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    tiles: torch.Tensor


def paged_attention(arguments: AttentionArguments) -> torch.Tensor:
    scoring = arguments.scoring
    assert scoring.slopes is None, "the table has a condition"
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
    reach, num_kv_heads = arguments.scoring.reach, arguments.num_kv_heads
    rows = tile_for(arguments.query).rows
    layout = spans.shared(("layout", arguments.group, rows), lambda: _lay_out(spans, arguments.group, rows))
    call = AttentionCall(arguments, layout.query_starts, layout.context_lens, out)
    key = ("work", reach, num_kv_heads)
    for work in spans.shared(key, lambda: _eager_work(spans, layout, reach, num_kv_heads)):
        decode_attention(call, work)
    if layout.tiles.shape[0]:
        prefill_attention(call, layout.tiles)


def _attend_in_graph(arguments: AttentionArguments, spans: DecodeSpans, out: torch.Tensor) -> None:
    reach, num_kv_heads = arguments.scoring.reach, arguments.num_kv_heads
    key = ("work", reach, num_kv_heads)
    work = spans.shared(key, lambda: _graph_work(spans, out.shape[0], reach, num_kv_heads))
    call = AttentionCall(arguments, spans.query_starts, spans.context_lens, out)
    decode_attention(call, work)
    if spans.num_prompts:
        rows, group = tile_for(arguments.query).rows, arguments.group
        prefill_attention(
            call, spans.shared(("tiles", group, rows), lambda: prefill_map(spans, out.shape[0], group, rows))
        )


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
    return _Layout(
        numbers[: len(starts)],
        numbers[len(starts) : first_tile],
        numbers[first_tile:].view(-1, 2),
    )


def _eager_work(spans: AttentionSpans, layout: _Layout, reach: Reach, num_kv_heads: int) -> list[WorkMap]:
    """One map of all decodes. Unbatched, one for each number of tokens: the tile's rows follow from it, and with them
    the order of sums."""
    lens = sorted({query_len for query_len in spans.query_lens if 0 < query_len <= MAX_DECODE_LEN})
    groups = (
        [(length, length) for length in lens] if spans.unbatched else [(1, length) for length in lens[-1:]]
    )
    return [
        work_map(
            layout.query_starts,
            layout.context_lens,
            group,
            reach,
            _eager_limits(spans, group, reach, num_kv_heads),
        )
        for group in groups
    ]


def _eager_limits(
    spans: AttentionSpans, query_lens: tuple[int, int], reach: Reach, num_kv_heads: int
) -> WorkLimits:
    tiles = [
        num_tiles(query_len, context_len, reach)
        for query_len, context_len in zip(spans.query_lens, spans.context_lens, strict=True)
        if query_lens[0] <= query_len <= query_lens[1]
    ]
    if spans.unbatched:
        return fixed_limits(len(tiles), len(tiles) * query_lens[1], max(tiles), _fixed_tiles(spans))
    resident = resident_items(processor(spans.block_tables.device), num_kv_heads)
    return known_limits(tiles, query_lens[1], resident)


def _graph_work(spans: DecodeSpans, num_tokens: int, reach: Reach, num_kv_heads: int) -> WorkMap:
    num_spans = spans.context_lens.shape[0]
    tiles = most_tiles(spans.max_query_len, spans.max_context_len, reach)
    if spans.unbatched:
        # Longer spans have no items.
        decode_tokens = min(num_tokens, num_spans * spans.max_query_len)
        limits = fixed_limits(num_spans, decode_tokens, tiles, _fixed_tiles(spans))
    else:
        resident = resident_items(processor(spans.block_tables.device), num_kv_heads)
        limits = bounded_limits(num_spans, spans.max_query_len, tiles, resident)
    return work_map(spans.query_starts, spans.context_lens, (1, spans.max_query_len), reach, limits)


def _fixed_tiles(spans: AttentionSpans | DecodeSpans) -> int:
    """Equal for all steps over block tables of this width, in a graph and out of one."""
    return fixed_tiles(spans.block_tables.shape[1] * spans.block_size)


def attention_parts_bytes(
    device: torch.device,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_spans: int,
    num_tokens: int,
    max_context_len: int,
    unbatched: bool,
) -> int:
    """As the public function says."""
    resident = resident_items(processor(device), num_kv_heads)
    part_tokens = most_part_tokens(num_spans, num_tokens, max_context_len, resident, unbatched)
    return parts_bytes(part_tokens, num_heads, head_dim)
