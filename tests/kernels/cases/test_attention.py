"""Paged attention against a dense computation in float64, over a pool in which everything unused is NaN."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_case import Case, Shape, check, slopes_of
from closeness import DTYPES, assert_close
from penstock_kernels import (
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Scoring,
    paged_attention,
    reference,
)
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.gpu.tiles import processor
from triton.tools.tensor_descriptor import TensorDescriptor

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
    check(Case(Shape(dtype=dtype), lens, device))


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
    check(Case(replace(shape, dtype=dtype), [(1, 150), (2, 30), (9, 70)], device))


def test_heads_of_512(device: torch.device) -> None:
    check(Case(Shape(8, 2, 512, dtype=torch.bfloat16), [(1, 150), (2, 30), (9, 70)], device))


@pytest.mark.parametrize("window", [1, 16, 63, 100, 5000])
def test_window(window: int, device: torch.device) -> None:
    check(
        Case(Shape(dtype=torch.float16), [(1, 300), (4, 130), (70, 70), (40, 260), (1, 3)], device),
        window=window,
    )


@pytest.mark.parametrize("chunk", [1, 16, 63, 100, 5000])
def test_chunks(chunk: int, device: torch.device) -> None:
    lens = [(1, 300), (1, 64), (1, 65), (4, 130), (70, 70), (40, 260), (1, 3)]
    check(Case(Shape(dtype=torch.float16), lens, device), chunk=chunk)


SLOPED = [(1, 1), (1, 140), (1, 77), (5, 70), (33, 100)]


@pytest.mark.parametrize(
    "shape",
    [Shape(4, 4), Shape(6, 2), Shape(3, 3, 80), Shape(71, 1)],
    ids=lambda shape: f"{shape.num_heads}x{shape.num_kv_heads}x{shape.dim}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slopes(shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
    check(Case(replace(shape, dtype=dtype), SLOPED, device), slopes=slopes_of(shape.num_heads, device))


@pytest.mark.parametrize("options", [{"window": 50}, {"chunk": 63}, {"soft_cap": 20.0}], ids=str)
def test_slopes_beside_other_options(options: dict[str, Any], device: torch.device) -> None:
    slopes = slopes_of(6, device)
    check(Case(Shape(6, 2), SLOPED, device), slack=4, slopes=slopes, **options)


@pytest.mark.parametrize("lens", [[(1, 900), (1, 3), (4, 600)], SLOPED], ids=["parts", "prompt"])
def test_slopes_beside_sinks_are_counted_from_the_query(
    lens: list[tuple[int, int]], device: torch.device
) -> None:
    """Counted from elsewhere, scores of a query would all be larger or smaller than the sink's."""
    sinks = torch.randn(2, device=device)
    check(Case(Shape(2, 1), lens, device), slopes=slopes_of(2, device), sinks=sinks)


def test_soft_cap_and_sinks(device: torch.device) -> None:
    case = Case(Shape(), [(1, 300), (3, 40), (20, 70)], device)
    sinks = torch.randn(case.shape.num_heads, device=device)
    check(case, slack=4, soft_cap=2.0)
    check(case, sinks=sinks)
    check(case, slack=4, soft_cap=20.0, window=50, sinks=sinks)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tree_of_drafted_tokens(dtype: torch.dtype, device: torch.device) -> None:
    #      0
    #     1 2
    #    3   4
    parents = [None, 0, 0, 1, 2]
    branches = [~_hidden(parents, token) for token in range(5)]
    # A token alone, whose tree began before its span; and one that sees all.
    tree = torch.tensor([*branches, branches[4], -1, *branches], dtype=torch.int32, device=device)
    check(Case(Shape(dtype=dtype), [(5, 5), (1, 100), (1, 9), (5, 270)], device), tree=tree)


def _hidden(parents: list[int | None], token: int) -> int:
    """Bit i: the token i before this one is not on the way to the root."""
    way, at = {token}, parents[token]
    while at is not None:
        way.add(at)
        at = parents[at]
    return sum(1 << token - other for other in range(token) if other not in way)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_slopes", [False, True], ids=["flat", "slopes"])
def test_cache_of_eight_bits(has_slopes: bool, dtype: torch.dtype, device: torch.device) -> None:
    case = Case(Shape(dtype=dtype, cache_dtype=torch.float8_e4m3fn), [(1, 200), (3, 40), (20, 60)], device)
    caches = (case.key_cache, case.value_cache)
    slopes = slopes_of(case.shape.num_heads, device) if has_slopes else None
    scoring = Scoring(0.25, key_scale=0.5, value_scale=2.0, slopes=slopes)
    expected = 2 * case.expected(0.125, slopes=slopes)
    found = paged_attention(case.query, *caches, case.spans(), scoring)
    assert_close(found, expected, slack=2)
    plain = reference.paged_attention(AttentionArguments(case.query, *caches, case.spans(), scoring))
    assert_close(plain, expected, slack=2)


def test_no_spans_and_empty_spans(device: torch.device) -> None:
    case = Case(Shape(), [], device)
    found = paged_attention(case.query, case.key_cache, case.value_cache, case.spans(), Scoring(1.0))
    assert found.shape == (0, 4, 64)
    check(Case(Shape(), [(0, 0), (1, 5), (0, 40), (2, 9)], device))


def test_one_huge_among_many_tiny(device: torch.device) -> None:
    check(
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


def test_a_graph_of_more_rows_than_decode(device: torch.device) -> None:
    """Padding rows take no item, so the real ones are split; the memory for the parts must be there."""
    real = [(1, 1 + 97 * row) for row in range(9)]
    case = Case(Shape(), [*real, *[(1, 0)] * 3], device)
    scoring = Scoring(case.shape.dim**-0.5)
    found = paged_attention(case.query, case.key_cache, case.value_cache, case.decode_spans(), scoring)
    assert_close(found[:9], case.expected(scoring.scale)[:9])


def test_layers_share_one_work_map(device: torch.device) -> None:
    case = Case(Shape(num_kv_heads=1), [(1, 200), (9, 20)], device)
    spans = case.spans()
    arguments = (case.query, case.key_cache, case.value_cache, spans, Scoring(0.1))
    first = paged_attention(*arguments)
    kept = dict(spans._shared)
    assert torch.equal(paged_attention(*arguments), first)
    assert all(spans._shared[key] is value for key, value in kept.items())


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> list[TensorDescriptor]:
    """Prompts read the cache through descriptors, as where that was measured to be faster: those that were made."""
    if not runs_kernels(device):
        pytest.skip("descriptors are arguments of kernels")
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        pytest.skip("descriptors need sm_90")
    place, made = "penstock_kernels.gpu.cache_descriptors", list[TensorDescriptor]()

    def make(*arguments: Any) -> TensorDescriptor:
        made.append(TensorDescriptor(*arguments))
        return made[-1]

    monkeypatch.setattr(f"{place}.MEASURED_FASTER", {processor(device).name})
    monkeypatch.setattr(f"{place}.TensorDescriptor", make)
    return made


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        (Shape(block_size=128, dtype=torch.float16), {}),
        (Shape(3, 1, 80, 128, torch.bfloat16), {"soft_cap": 20.0}),
        (Shape(4, 2, 128, 256, torch.bfloat16, torch.float8_e4m3fn), {}),
        (Shape(2, 2, 64, 128, torch.float16), {"window": 100}),
        (Shape(2, 1, 128, 64, torch.float16), {"chunk": 150}),
        (Shape(8, 1, 256, 128, torch.bfloat16), {}),
    ],
    ids=lambda given: (
        f"{given.dim}-{given.dtype}-{given.block_size}" if isinstance(given, Shape) else str(given)
    ),
)
def test_descriptors_of_the_cache_change_no_bit(
    shape: Shape, options: dict[str, Any], described: list[TensorDescriptor], monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
) -> None:  # fmt: skip
    """In blocks that hold whole tiles, whose last positions are no numbers."""
    case = Case(shape, [(9, 9), (40, 290), (33, 513), (1, 80), (130, 256)], device)
    given = (case.query, case.key_cache, case.value_cache, case.spans(), Scoring(shape.dim**-0.5, **options))
    found = paged_attention(*given)
    assert [it.base.data_ptr() for it in described] == [it.data_ptr() for it in given[1:3]]
    assert_close(found, case.expected(given[-1].scale, **options), 4)
    monkeypatch.setattr("penstock_kernels.gpu.cache_descriptors.MEASURED_FASTER", set())
    assert torch.equal(paged_attention(*given), found)
    assert len(described) == 2


@pytest.mark.parametrize(
    "shape",
    [
        Shape(block_size=16, dtype=torch.float16),
        Shape(block_size=48, dtype=torch.float16),
        Shape(block_size=128, dtype=torch.float32),
        Shape(dim=20, block_size=128, dtype=torch.float16),
    ],
    ids=["small blocks", "tiles in two blocks", "float32", "heads that are not aligned"],
)
def test_what_descriptors_do_not_take_is_read_by_pointers(
    shape: Shape, described: list[TensorDescriptor], device: torch.device
) -> None:
    check(Case(shape, [(9, 200)], device))
    assert described == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window 0"),
        ({"soft_cap": -1.0}, "soft_cap"),
        ({"sinks": torch.zeros(3)}, "sinks must be float32"),
        ({"slopes": torch.zeros(3)}, "slopes must be float32"),
        ({"chunk": 0}, "chunk 0 must be positive"),
        ({"chunk": 4, "window": 3}, "chunk 4 must be positive, without a window"),
    ],
)
def test_refuses_what_is_wrong(change: dict[str, Any], message: str, device: torch.device) -> None:
    case = Case(Shape(), [(1, 5)], device)
    with pytest.raises(ValueError, match=message):
        paged_attention(
            case.query, case.key_cache, case.value_cache, case.spans(), Scoring(1.0)._replace(**change)
        )
