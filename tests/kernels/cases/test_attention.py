"""Paged attention against a dense computation in float64, over a pool in which everything unused is NaN."""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Scoring,
    attention_parts_bytes,
    paged_attention,
    reference,
)


@dataclass(frozen=True)
class Shape:
    """Heads and cache of a case."""

    num_heads: int = 4
    num_kv_heads: int = 2
    dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None


class Case:
    """A filled cache and the queries of a step. Blocks are scattered; nothing but written positions is a number."""

    def __init__(self, shape: Shape, lens: list[tuple[int, int]], device: torch.device) -> None:
        """lens: query and context length of every span."""
        self.shape, self.lens, self.device = shape, lens, device
        num_blocks = [-(-context // shape.block_size) for _, context in lens]
        pool_size = sum(num_blocks) + 2
        cache_shape = (pool_size, shape.block_size, shape.num_kv_heads, shape.dim)
        cache_dtype = shape.cache_dtype or shape.dtype
        self.key_cache, self.value_cache = (
            torch.full(cache_shape, float("nan"), device=device).to(cache_dtype) for _ in range(2)
        )
        free = torch.randperm(pool_size - 1).add(1)  # block 0 stays poison: tables are padded with it
        self.tables = torch.zeros(len(lens), max(num_blocks, default=0) + 1, dtype=torch.int32)
        self.keys, self.values = [], []
        for span, (_, context) in enumerate(lens):
            blocks, free = free[: num_blocks[span]], free[num_blocks[span] :]
            self.tables[span, : len(blocks)] = blocks
            positions = torch.arange(context)
            where = (blocks[positions // shape.block_size], positions % shape.block_size)
            key, value = (
                torch.randn(context, shape.num_kv_heads, shape.dim).to(cache_dtype).to(device)
                for _ in range(2)
            )
            for cache, rows in ((self.key_cache, key), (self.value_cache, value)):
                bits = torch.uint8 if cache_dtype.itemsize == 1 else cache_dtype
                cache.view(bits)[where] = rows.view(bits)
            self.keys.append(key.double())
            self.values.append(value.double())
        self.tables = self.tables.to(device)
        num_tokens = sum(query for query, _ in lens)
        # A slice of a fused projection, as models have it.
        fused = torch.randn(num_tokens, shape.num_heads + 3, shape.dim, device=device).to(shape.dtype)
        self.query = fused[:, : shape.num_heads]

    def spans(self, **options: object) -> AttentionSpans:
        queries, contexts = (tuple(pair[i] for pair in self.lens) for i in range(2))
        return AttentionSpans(queries, contexts, self.tables, self.shape.block_size, **options)  # type: ignore[arg-type]

    def decode_spans(self, **options: object) -> DecodeSpans:
        lens = torch.tensor(self.lens, dtype=torch.int32).view(-1, 2)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens[:, 0].cumsum(0).int())).to(self.device)
        longest = [int(lens[:, i].max()) for i in range(2)]
        contexts = lens[:, 1].contiguous().to(self.device)
        return DecodeSpans(starts, contexts, self.tables, self.shape.block_size, *longest, **options)  # type: ignore[arg-type]

    def expected(
        self,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        tree: torch.Tensor | None = None,
    ) -> torch.Tensor:
        results, first = [], 0
        for (query_len, context), key, value in zip(self.lens, self.keys, self.values, strict=True):
            query = self.query[first : first + query_len].double()
            group = self.shape.num_heads // self.shape.num_kv_heads
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", query, key) * scale
            if soft_cap is not None:
                scores = soft_cap * (scores / soft_cap).tanh()
            positions = torch.arange(context, device=self.device)
            distance = positions[context - query_len :, None] - positions
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            if tree is not None:
                bits = tree[first : first + query_len, None] >> torch.arange(query_len, device=self.device)
                hidden[:, context - query_len :] = bits & 1 == 0
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(-1, query_len, 1)), -1)
            weights = scores.softmax(-1)[..., :context]
            results.append(torch.einsum("hqk,khd->qhd", weights, value))
            first += query_len
        return torch.cat(results)


def _check(case: Case, slack: float = 1.0, tree: torch.Tensor | None = None, **options: object) -> None:
    """The kernel and the reference, eager and, where all spans are decodes, as a graph would call it."""
    scale = case.shape.dim**-0.5
    expected = case.expected(scale, tree=tree, **options)  # type: ignore[arg-type]
    arguments = (case.query, case.key_cache, case.value_cache)
    spans = case.spans(tree=tree)
    scoring = Scoring(scale, **options)  # type: ignore[arg-type]
    assert_close(paged_attention(*arguments, spans, scoring), expected, slack)
    plain = reference.paged_attention(AttentionArguments(*arguments, case.spans(tree=tree), scoring))
    assert_close(plain, expected, slack)
    if all(query_len <= 8 for query_len, _ in case.lens):
        decoded = paged_attention(*arguments, case.decode_spans(tree=tree), scoring)
        assert_close(decoded, expected, slack)


DECODES = [(1, 1), (1, 63), (1, 80), (1, 1000)]
MANY_TINY = [(1, 1 + i % 5) for i in range(10)]
DRAFTS = [(8, 8), (3, 80), (1, 64), (5, 200)]
PREFILLS = [(63, 63), (40, 140), (9, 200), (1, 80)]
PROMPTS = [(33, 70), (17, 17)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "lens",
    [DECODES, MANY_TINY, DRAFTS, PREFILLS, PROMPTS],
    ids=["decodes", "tiny", "drafts", "prefills", "prompts"],
)
def test_spans(lens: list[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> None:
    _check(Case(Shape(dtype=dtype), lens, device))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(num_heads=3, num_kv_heads=3, dim=80),
        Shape(num_heads=7, num_kv_heads=1, dim=96, block_size=32),
        Shape(num_heads=6, num_kv_heads=2, dim=112, block_size=48),
        Shape(num_heads=2, num_kv_heads=1, dim=256, block_size=128),
        Shape(num_heads=71, num_kv_heads=1, dim=64),
        Shape(num_heads=2, num_kv_heads=2, dim=192, block_size=64),
    ],
    ids=lambda shape: f"{shape.num_heads}x{shape.num_kv_heads}x{shape.dim}-block{shape.block_size}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    _check(Case(replace(shape, dtype=dtype), [(1, 150), (2, 30), (9, 70)], device))


@pytest.mark.parametrize("shared_bytes", [101_376, 232_448], ids=["sm_89", "sm_90"])
def test_tiles_of_other_processors(
    shared_bytes: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock_kernels.gpu.tiles import Processor

    for module in ("decode_attention", "prefill_attention"):
        monkeypatch.setattr(f"penstock_kernels.gpu.{module}.processor", lambda _: Processor(4, shared_bytes))
    for dim in (64, 128, 192):
        _check(Case(Shape(dim=dim, dtype=torch.float16), [(150, 290), (1, 80)], device), window=200)


@pytest.mark.parametrize("window", [1, 16, 63, 100, 5000])
def test_window(window: int, device: torch.device) -> None:
    _check(
        Case(Shape(dtype=torch.float16), [(1, 300), (4, 130), (70, 70), (40, 260), (1, 3)], device),
        window=window,
    )


def test_soft_cap_and_sinks(device: torch.device) -> None:
    case = Case(Shape(), [(1, 300), (3, 40), (20, 70)], device)
    sinks = torch.randn(case.shape.num_heads, device=device)
    _check(case, slack=4, soft_cap=2.0)
    _check(case, sinks=sinks)
    _check(case, slack=4, soft_cap=20.0, window=50, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tree_of_drafted_tokens(dtype: torch.dtype, device: torch.device) -> None:
    #      0
    #     1 2
    #    3   4
    branches = [0b1, 0b11, 0b101, 0b1011, 0b10101]
    tree = torch.tensor([*branches, 0b1, *branches], dtype=torch.int32, device=device)
    _check(Case(Shape(dtype=dtype), [(5, 5), (1, 100), (5, 270)], device), tree=tree)


@pytest.mark.parametrize("dtype", DTYPES)
def test_cache_of_eight_bits(dtype: torch.dtype, device: torch.device) -> None:
    case = Case(Shape(dtype=dtype, cache_dtype=torch.float8_e4m3fn), [(1, 200), (3, 40), (20, 60)], device)
    caches = (case.key_cache, case.value_cache)
    scoring = Scoring(0.25, key_scale=0.5, value_scale=2.0)
    found = paged_attention(case.query, *caches, case.spans(), scoring)
    assert_close(found, 2 * case.expected(0.125), slack=2)
    plain = reference.paged_attention(AttentionArguments(case.query, *caches, case.spans(), scoring))
    assert_close(plain, 2 * case.expected(0.125), slack=2)


def test_no_spans_and_empty_spans(device: torch.device) -> None:
    case = Case(Shape(), [], device)
    found = paged_attention(case.query, case.key_cache, case.value_cache, case.spans(), Scoring(1.0))
    assert found.shape == (0, 4, 64)
    _check(Case(Shape(), [(0, 0), (1, 5), (0, 40), (2, 9)], device))


def test_one_huge_among_many_tiny(device: torch.device) -> None:
    _check(
        Case(Shape(num_heads=2, num_kv_heads=1, dim=64), [*MANY_TINY[:4], (1, 3000), *MANY_TINY[:3]], device)
    )


def test_unbatched_spans_do_not_depend_on_the_others(device: torch.device) -> None:
    alone = Case(Shape(num_heads=1, num_kv_heads=1), [(1, 1500)], device)
    scoring = Scoring(alone.shape.dim**-0.5)
    expected = paged_attention(
        alone.query, alone.key_cache, alone.value_cache, alone.spans(unbatched=True), scoring
    )
    for repeats in (2, 5):
        tables = alone.tables.repeat(repeats, 1)
        lens = (1,) * repeats, (1500,) + (70,) * (repeats - 1)
        spans = AttentionSpans(*lens, tables, alone.shape.block_size, unbatched=True)
        query = alone.query.repeat(repeats, 1, 1)
        found = paged_attention(query, alone.key_cache, alone.value_cache, spans, scoring)
        assert torch.equal(found[0], expected[0])


def test_unbatched_spans_have_equal_bits_in_a_graph_and_beside_drafts(device: torch.device) -> None:
    case = Case(Shape(num_heads=1, num_kv_heads=1), [(1, 1500), (1, 70), (5, 1100)], device)
    scoring = Scoring(case.shape.dim**-0.5)
    caches = (case.key_cache, case.value_cache)
    expected = paged_attention(case.query, *caches, case.spans(unbatched=True), scoring)
    assert_close(expected, case.expected(scoring.scale))
    starts = torch.tensor([0, 1, 2, 3], dtype=torch.int32, device=device)
    contexts = torch.tensor([1500, 70, 0], dtype=torch.int32, device=device)
    graph = DecodeSpans(starts, contexts, case.tables, case.shape.block_size, 1, 1600, unbatched=True)
    found = paged_attention(case.query[:3], *caches, graph, scoring)
    assert torch.equal(found[:2], expected[:2])


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


def test_a_graph_of_more_rows_than_decode(device: torch.device) -> None:
    """Padding rows take no item, so the real ones are split; the memory for the parts must be there."""
    real = [(1, 1 + 97 * row) for row in range(9)]
    case = Case(Shape(), [*real, *[(1, 0)] * 3], device)
    scoring = Scoring(case.shape.dim**-0.5)
    found = paged_attention(case.query, case.key_cache, case.value_cache, case.decode_spans(), scoring)
    assert_close(found[:9], case.expected(scoring.scale)[:9])


@pytest.mark.parametrize("in_graph", [False, True])
def test_one_long_sequence_among_seventy_short_ones_is_split(in_graph: bool, device: torch.device) -> None:
    case = Case(Shape(num_heads=1, num_kv_heads=1), [*[(1, 5)] * 70, (1, 2000)], device)
    spans = case.decode_spans() if in_graph else case.spans()
    scoring = Scoring(case.shape.dim**-0.5)
    found = paged_attention(case.query, case.key_cache, case.value_cache, spans, scoring)
    assert_close(found, case.expected(scoring.scale))
    (works,) = (value for key, value in spans._shared.items() if key[0] == "work")
    work = works if in_graph else works[0]
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

    for resident, window in ((1, None), (2, 100), (7, None), (66, 900), (66, None)):
        queries = torch.randint(0, 6, (40,)).tolist()
        contexts = [
            query + int(torch.randint(0, 50 + 50 * (i % 7) ** 2, (1,))) for i, query in enumerate(queries)
        ]
        starts = torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device)
        tiles = work_limits.most_tiles(5, max(contexts), window)
        limits = work_limits.bounded_limits(len(queries), 5, tiles, resident)
        lens = torch.tensor(contexts, dtype=torch.int32, device=device)
        work = work_map(starts, lens, (1, 5), window, limits)
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
            first = last - work_limits.num_tiles(query, context, window) if query else 0
            ends = [first, *(end for _, end in pieces)]
            assert [start for start, _ in pieces] == ends[:-1]
            assert ends[-1] == last
        split = [[span, len(pieces)] for span, pieces in given.items() if len(pieces) > 1]
        assert [row[::2] for row in work.splits.tolist() if row[0] >= 0] == split


def test_layers_share_one_work_map(device: torch.device) -> None:
    case = Case(Shape(num_kv_heads=1), [(1, 200), (9, 20)], device)
    spans = case.spans()
    arguments = (case.query, case.key_cache, case.value_cache, spans, Scoring(0.1))
    first = paged_attention(*arguments)
    kept = dict(spans._shared)
    assert torch.equal(paged_attention(*arguments), first)
    assert all(spans._shared[key] is value for key, value in kept.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window 0"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"sinks": torch.zeros(3)}, "sinks must be float32"),
    ],
)
def test_refuses_what_is_wrong(change: dict[str, Any], message: str, device: torch.device) -> None:
    case = Case(Shape(), [(1, 5)], device)
    with pytest.raises(ValueError, match=message):
        paged_attention(
            case.query, case.key_cache, case.value_cache, case.spans(), Scoring(1.0)._replace(**change)
        )
