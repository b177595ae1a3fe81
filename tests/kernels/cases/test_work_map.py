"""Properties of the work map of decode attention, over processors of any size and spans of any lengths.

What a step needs is counted here; what it gets is read from the maps that the kernel makes.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, AttentionSpans, DecodeSpans, Reach
from penstock_kernels.base.devices import runs_kernels

KEYS = 64  # of a tile
HEAD_DIM = 8
BLOCK_SIZE = 16


@dataclass(frozen=True)
class Step:
    """`lens`: tokens and context of every span. The block table has `table_len` positions for each."""

    lens: tuple[tuple[int, int], ...]
    num_multiprocessors: int
    num_kv_heads: int
    window: int | None
    unbatched: bool
    table_len: int

    @property
    def num_tokens(self) -> int:
        return sum(query_len for query_len, _ in self.lens)

    def tiles_of(self, span: int) -> range:
        """The tiles that the queries of a decode see: none where the context is empty, as in rows that pad a step."""
        query_len, context_len = self.lens[span]
        if not 0 < query_len <= MAX_DECODE_LEN or context_len == 0:
            return range(0)
        first_seen = 0 if self.window is None else max(context_len - query_len + 1 - self.window, 0)
        return range(first_seen // KEYS, -(-context_len // KEYS))


def _spans(longest: int, most_tokens: int) -> st.SearchStrategy[tuple[int, int]]:
    """Tokens, and a context that has them; or one that has none, as rows that pad a step."""
    spans = st.tuples(st.integers(0, most_tokens), st.integers(0, longest))
    return st.one_of(spans.map(lambda lens: (lens[0], sum(lens))), st.just((1, 0)))


@st.composite
def _steps(draw: st.DrawFn, most_tokens: int) -> Step:
    longest = draw(st.sampled_from([5, 300, 3000, 40_000]))
    # Few lengths for many spans, or lengths of their own for each.
    some = draw(st.lists(_spans(longest, most_tokens), min_size=1, max_size=6))
    repeats = draw(st.lists(st.integers(1, 40), min_size=len(some), max_size=len(some)))
    lens = [span for span, count in zip(some, repeats, strict=True) for _ in range(count)]
    lens = draw(st.permutations(lens)) if draw(st.booleans()) else lens
    assume(any(query_len for query_len, _ in lens))
    blocks = max(context_len for _, context_len in lens) // BLOCK_SIZE + draw(st.integers(1, 300))
    return Step(
        lens=tuple(lens),
        num_multiprocessors=draw(st.integers(1, 132)),
        num_kv_heads=draw(st.integers(1, 32)),
        window=draw(st.one_of(st.none(), st.integers(1, 5000))),
        unbatched=draw(st.booleans()),
        table_len=BLOCK_SIZE * blocks,
    )


# Steps that failed once: padding rows beside few decodes, and one long sequence among many short ones.
PADDED = Step(tuple((1, 1 + 97 * row) for row in range(9)) + ((1, 0),) * 3, 4, 2, None, False, 1008)
ONE_LONG = Step(((1, 5),) * 70 + ((1, 8000),), 132, 8, None, False, 8192)

_settings = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    # The device, and the poisoned memory, are the same for every example.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@_settings
@example(step=PADDED)
@example(step=ONE_LONG)
@given(step=_steps(MAX_DECODE_LEN))
def test_in_a_graph_every_tile_is_given_out_once(step: Step, device: torch.device) -> None:
    """The host knows bounds, and the device the lengths."""
    starts = torch.tensor([0, *accumulate(query_len for query_len, _ in step.lens)], dtype=torch.int32)
    contexts = torch.tensor([context_len for _, context_len in step.lens], dtype=torch.int32)
    most_tokens = max(query_len for query_len, _ in step.lens)
    spans = DecodeSpans(
        starts.to(device),
        contexts.to(device),
        _tables(step, device),
        BLOCK_SIZE,
        most_tokens,
        step.table_len,
        step.unbatched,
    )
    _check(step, _maps(step, spans))


@_settings
@example(step=ONE_LONG)
@given(step=_steps(MAX_DECODE_LEN + 3))
def test_out_of_a_graph_every_tile_of_a_decode_is_given_out_once(step: Step, device: torch.device) -> None:
    """The host knows all lengths; spans of more tokens are prefills."""
    queries, contexts = zip(*step.lens, strict=True)
    spans = AttentionSpans(queries, contexts, _tables(step, device), BLOCK_SIZE, step.unbatched)
    _check(step, _maps(step, spans))


def _maps(step: Step, spans: AttentionSpans | DecodeSpans) -> list[Any]:
    if not runs_kernels(spans.block_tables.device):
        pytest.skip("no map is made")
    from penstock_kernels.gpu.attention_work import Cut, step_work

    cut = Cut(group=1, rows=16, reach=Reach(step.window), resident=_resident(step))
    # More spans than these are taken in several goes.
    with mock.patch("penstock_kernels.gpu.work_map._MOST_AT_ONCE", 64):
        return step_work(spans, step.num_tokens, cut).decodes


def _resident(step: Step) -> int:
    from penstock_kernels.gpu import work_limits

    return work_limits.resident_items(_processor(step), step.num_kv_heads)


def _processor(step: Step) -> Any:
    from penstock_kernels.gpu.tiles import Processor

    return Processor(step.num_multiprocessors, 232_448)


def _tables(step: Step, device: torch.device) -> torch.Tensor:
    return torch.zeros(len(step.lens), step.table_len // BLOCK_SIZE, dtype=torch.int32, device=device)


def _check(step: Step, maps: list[Any]) -> None:
    """All maps of a step together, whose parts lie in memory of their own."""
    given_out: dict[int, list[range]] = {}
    for work in maps:
        items, splits = _used(work.items.tolist()), _used(work.splits.tolist())
        of_map: dict[int, list[range]] = {}
        for span, first, end, _ in items:
            assert first < end
            of_map.setdefault(span, []).append(range(first, end))
        assert not of_map.keys() & given_out.keys()
        given_out |= of_map
        assert max(map(len, of_map.values()), default=0) <= work.limits.most_items
        _check_parts(step, items, splits, work.limits.num_part_tokens)
    for span in range(len(step.lens)):
        tiles, pieces = step.tiles_of(span), given_out.get(span, [])
        assert [tile for piece in pieces for tile in piece] == list(tiles), span
        _check_lengths(step, pieces)
    _check_memory(step, max((work.limits.num_part_tokens for work in maps), default=0))


def _used(rows: list[list[int]]) -> list[list[int]]:
    """Idle rows are -1, and last."""
    used = [row for row in rows if row[0] >= 0]
    assert [row[0] for row in rows[len(used) :]] == [-1] * (len(rows) - len(used))
    return used


def _check_parts(step: Step, items: list[list[int]], splits: list[list[int]], num_part_tokens: int) -> None:
    """Every token of every item of a split span has a place of its own in the memory, and the split says where."""
    taken: set[int] = set()
    places: dict[int, list[int]] = {}
    for span, _, _, part in items:
        places.setdefault(span, []).append(part)
    for span, first, count in splits:
        query_len = step.lens[span][0]
        assert places.pop(span) == [first + number * query_len for number in range(count)]
        assert count > 1
        tokens = set(range(first, first + count * query_len))
        assert not tokens & taken
        taken |= tokens
    assert all(parts == [-1] for parts in places.values()), "the others are one item each"
    assert not taken or (min(taken) >= 0 and max(taken) < num_part_tokens)


def _check_lengths(step: Step, pieces: list[range]) -> None:
    """Unbatched, they follow from the block table alone. Else no item is much longer than a share of the work."""
    from penstock_kernels.gpu import work_limits

    if step.unbatched:
        assert {len(piece) for piece in pieces[:-1]} <= {work_limits.fixed_tiles(step.table_len)}
        return
    num_tiles = sum(len(step.tiles_of(span)) for span in range(len(step.lens)))
    share = max(-(-num_tiles // _resident(step)), work_limits.LEAST_TILES)
    assert all(2 * len(piece) <= 3 * share for piece in pieces)


def _check_memory(step: Step, num_part_tokens: int) -> None:
    """The memory for parts is within what the public function says for such steps."""
    from penstock_kernels.gpu import attention, work_limits

    bounds = (step.num_kv_heads, step.num_kv_heads, HEAD_DIM, len(step.lens), step.num_tokens, step.table_len)
    with mock.patch("penstock_kernels.gpu.attention.processor", return_value=_processor(step)):
        most = attention.attention_parts_bytes(torch.device("cpu"), *bounds, step.unbatched)
    assert work_limits.parts_bytes(num_part_tokens, step.num_kv_heads, HEAD_DIM) <= most
