"""The work of a step's attention, made once and shared by its layers: lengths on the device, maps of decodes, and tiles
of prompts. Out of a graph the host knows the lengths, in a graph only their bounds."""

from typing import NamedTuple

import torch

from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, AttentionSpans, DecodeSpans, Reach
from penstock_kernels.base.upload import upload
from penstock_kernels.gpu.prefill_map import prefill_map, prefill_tiles
from penstock_kernels.gpu.work_limits import (
    WorkLimits,
    bounded_limits,
    fixed_limits,
    fixed_tiles,
    known_limits,
    most_tiles,
    num_tiles,
)
from penstock_kernels.gpu.work_map import WorkMap, work_map


class Cut(NamedTuple):
    """How a kernel cuts spans. `group`: query heads of a key head; `rows`: of a tile of a prompt; `resident`: items of
    decodes that run at once."""

    group: int
    rows: int
    reach: Reach
    resident: int


class Layout(NamedTuple):
    """The spans of a step on the device: [num_spans + 1], [num_spans] and [num_tiles, 2] int32."""

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    tiles: torch.Tensor


class StepWork(NamedTuple):
    """A layout, and maps of the spans that are decodes."""

    layout: Layout
    decodes: list[WorkMap]


def step_work(spans: AttentionSpans | DecodeSpans, num_tokens: int, cut: Cut) -> StepWork:
    """The work of a step for all layers of this reach. `num_tokens`: of all spans, and rows behind them."""
    if isinstance(spans, DecodeSpans):
        key = ("tiles", cut.group, cut.rows)
        tiles = spans.shared(key, lambda: _graph_tiles(spans, num_tokens, cut))
        layout = Layout(spans.query_starts, spans.context_lens, tiles)
    else:
        layout = spans.shared(("layout", cut.group, cut.rows), lambda: lay_out(spans, cut.group, cut.rows))

    def maps() -> list[WorkMap]:
        if isinstance(spans, DecodeSpans):
            return [graph_decodes(spans, num_tokens, cut.reach, cut.resident)]
        return eager_decodes(spans, layout, cut.reach, cut.resident)

    return StepWork(layout, spans.shared(("work", cut.reach, cut.resident), maps))


def _graph_tiles(spans: DecodeSpans, num_tokens: int, cut: Cut) -> torch.Tensor:
    """The tiles of all prompts that there may be."""
    if not spans.num_prompts:
        return spans.query_starts.new_empty(0, 2)
    return prefill_map(spans, num_tokens, cut.group, cut.rows)


def lay_out(spans: AttentionSpans, group: int, rows: int) -> Layout:
    """The layout of a step. All of it goes to the device in one copy."""
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
    return Layout(
        numbers[: len(starts)],
        numbers[len(starts) : first_tile],
        numbers[first_tile:].view(-1, 2),
    )


def eager_decodes(spans: AttentionSpans, layout: Layout, reach: Reach, resident: int) -> list[WorkMap]:
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
            _eager_limits(spans, group, reach, resident),
        )
        for group in groups
    ]


def _eager_limits(
    spans: AttentionSpans, query_lens: tuple[int, int], reach: Reach, resident: int
) -> WorkLimits:
    tiles = [
        num_tiles(query_len, context_len, reach)
        for query_len, context_len in zip(spans.query_lens, spans.context_lens, strict=True)
        if query_lens[0] <= query_len <= query_lens[1]
    ]
    if spans.unbatched:
        return fixed_limits(len(tiles), len(tiles) * query_lens[1], max(tiles), _fixed_tiles(spans))
    return known_limits(tiles, query_lens[1], resident)


def graph_decodes(spans: DecodeSpans, num_tokens: int, reach: Reach, resident: int) -> WorkMap:
    """The map of all decodes that there may be."""
    num_spans = spans.context_lens.shape[0]
    tiles = most_tiles(spans.max_query_len, spans.max_context_len, reach)
    if spans.unbatched:
        # Longer spans have no items.
        decode_tokens = min(num_tokens, num_spans * spans.max_query_len)
        limits = fixed_limits(num_spans, decode_tokens, tiles, _fixed_tiles(spans))
    else:
        limits = bounded_limits(num_spans, spans.max_query_len, tiles, resident)
    return work_map(spans.query_starts, spans.context_lens, (1, spans.max_query_len), reach, limits)


def _fixed_tiles(spans: AttentionSpans | DecodeSpans) -> int:
    """Tiles of an item: equal for all steps over block tables of this width, in a graph and out of one."""
    return fixed_tiles(spans.block_tables.shape[1] * spans.block_size)
