"""The work map of decode attention, and the tiles that kernels take: only kernels have them, not the ops in C."""

from itertools import accumulate
from typing import Any

import pytest
import torch
from attention_case import Case, Shape, check
from closeness import assert_close
from penstock_kernels import Scoring, attention_parts_bytes, paged_attention
from penstock_kernels.base.attention_spans import Reach


@pytest.mark.parametrize("shared_bytes", [101_376, 232_448], ids=["sm_89", "sm_90"])
def test_tiles_of_other_processors(
    shared_bytes: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock_kernels.gpu.tiles import Processor

    for module in ("decode_attention", "prefill_attention"):
        monkeypatch.setattr(f"penstock_kernels.gpu.{module}.processor", lambda _: Processor(4, shared_bytes))
    for dim in (64, 128, 192):
        check(Case(Shape(dim=dim, dtype=torch.float16), [(150, 290), (1, 80)], device), window=200)


def test_unbatched_spans_have_a_tile_of_their_own_height(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock_kernels.gpu.tiles import decode_tile

    heights: list[int] = []

    def watched(block_dim: int, num_rows: int, *sizes: int) -> Any:
        heights.append(num_rows)
        return decode_tile(block_dim, num_rows, *sizes)

    monkeypatch.setattr("penstock_kernels.gpu.decode_attention.decode_tile", watched)
    case = Case(Shape(num_heads=8, num_kv_heads=1), [(1, 9), (8, 80), (1, 70), (3, 40)], device)
    arguments = (case.query, case.key_cache, case.value_cache)
    paged_attention(*arguments, case.spans(unbatched=True), Scoring(0.1))
    assert heights == [8, 32, 64]


@pytest.mark.parametrize("in_graph", [False, True])
def test_one_long_sequence_among_seventy_short_ones_is_split(in_graph: bool, device: torch.device) -> None:
    case = Case(Shape(num_heads=1, num_kv_heads=1), [*[(1, 5)] * 70, (1, 2000)], device)
    spans = case.decode_spans() if in_graph else case.spans()
    scoring = Scoring(case.shape.dim**-0.5)
    found = paged_attention(case.query, case.key_cache, case.value_cache, spans, scoring)
    assert_close(found, case.expected(scoring.scale))
    ((work,),) = (value for key, value in spans._shared.items() if key[0] == "work")
    assert work.splits[0, 0] == 70
    assert work.splits[0, 2] >= 4


def test_sequences_of_equal_length_are_not_split_and_nothing_is_combined(device: torch.device) -> None:
    case = Case(Shape(num_heads=2, num_kv_heads=2), [(1, 300)] * 8, device)
    spans = case.spans()
    paged_attention(case.query, case.key_cache, case.value_cache, spans, Scoring(0.1))
    (works,) = (value for key, value in spans._shared.items() if key[0] == "work")
    assert works[0].limits.num_splits == 0


@pytest.mark.parametrize("unbatched", [False, True])
def test_memory_for_parts_is_within_what_is_foretold(
    unbatched: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock_kernels.gpu.attention_parts import empty_parts

    taken: list[int] = []

    def watched(query: torch.Tensor, num_part_tokens: int) -> Any:
        parts = empty_parts(query, num_part_tokens)
        taken.append(sum(part.numel() * part.element_size() for part in parts))
        return parts

    monkeypatch.setattr("penstock_kernels.gpu.decode_attention.empty_parts", watched)
    for lens in ([(1, 1500)], [(1, 70), (1, 3), (4, 1400)]):
        case = Case(Shape(num_heads=2, num_kv_heads=1), lens, device)
        num_tokens = case.query.shape[0]
        limits = (len(lens), num_tokens, case.tables.shape[1] * case.shape.block_size)
        most = attention_parts_bytes(device, 2, 1, case.shape.dim, *limits, unbatched)
        arguments = (case.query, case.key_cache, case.value_cache)
        for spans in (case.spans(unbatched=unbatched), case.decode_spans(unbatched=unbatched)):
            taken.clear()
            paged_attention(*arguments, spans, Scoring(0.1))
            assert 0 < max(taken) <= most


def test_the_work_map_gives_out_every_tile_once(device: torch.device) -> None:
    from penstock_kernels.gpu import work_limits
    from penstock_kernels.gpu.work_map import work_map

    for resident, reach in (
        (1, Reach()),
        (2, Reach(100)),
        (7, Reach()),
        (66, Reach(900)),
        (66, Reach()),
        (3, Reach(chunk=130)),
    ):
        queries = torch.randint(0, 6, (40,)).tolist()
        contexts = [
            query + int(torch.randint(0, 50 + 50 * (i % 7) ** 2, (1,))) for i, query in enumerate(queries)
        ]
        starts = torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device)
        tiles = work_limits.most_tiles(5, max(contexts), reach)
        limits = work_limits.bounded_limits(len(queries), 5, tiles, resident)
        lens = torch.tensor(contexts, dtype=torch.int32, device=device)
        work = work_map(starts, lens, (1, 5), reach, limits)
        given: dict[int, list[tuple[int, int]]] = {}
        parts: set[int] = set()
        for span, first, end, part in work.items.tolist():
            if span >= 0:
                given.setdefault(span, []).append((first, end))
                tokens = set() if part < 0 else set(range(part, part + queries[span]))
                assert not tokens & parts
                parts |= tokens
        assert max(parts, default=-1) < limits.num_part_tokens or not parts
        for span, (query, context) in enumerate(zip(queries, contexts, strict=True)):
            pieces = given.get(span, [])
            last = -(-context // 64) if query else 0
            first = last - work_limits.num_tiles(query, context, reach) if query else 0
            ends = [first, *(end for _, end in pieces)]
            assert [start for start, _ in pieces] == ends[:-1]
            assert ends[-1] == last
        split = [[span, len(pieces)] for span, pieces in given.items() if len(pieces) > 1]
        assert [row[::2] for row in work.splits.tolist() if row[0] >= 0] == split
