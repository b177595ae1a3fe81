"""Long prompts in 16 bits on a processor with tiles: which spans PyTorch computes, beside which others."""

from typing import Any

import pytest
import torch
from penstock_kernels import AttentionArguments, AttentionSpans, Scoring, reference
from penstock_kernels.native import attention, long_prompts

_BLOCK = 16
# Queries and context of each span; that without queries is a sequence that waits.
MIXED = ((1, 70), (130, 130), (0, 5), (140, 300), (127, 200))


@pytest.fixture(autouse=True)
def has_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_prompts, "has_amx", lambda: True)


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Lengths of the spans that PyTorch is given, call by call."""
    given: list[tuple[int, ...]] = []
    attend = reference.paged_attention

    def noted(arguments: AttentionArguments) -> torch.Tensor:
        assert isinstance(arguments.spans, AttentionSpans)
        given.append(arguments.spans.query_lens)
        return attend(arguments)

    monkeypatch.setattr("penstock_kernels.native.long_prompts.reference.paged_attention", noted)
    return given


def arguments_of(
    lens: tuple[tuple[int, int], ...],
    dtype: torch.dtype = torch.bfloat16,
    unbatched: bool = False,
    **scoring: Any,
) -> AttentionArguments:
    torch.manual_seed(0)
    blocks = [-(-context // _BLOCK) for _, context in lens]
    tables = torch.zeros(len(lens), max(blocks), dtype=torch.int32)
    places = torch.randperm(sum(blocks)).int()
    for span, count in enumerate(blocks):
        tables[span, :count] = places[sum(blocks[:span]) :][:count]
    key, value = (torch.randn(sum(blocks), _BLOCK, 2, 32).to(dtype) for _ in range(2))
    query = torch.randn(sum(length for length, _ in lens), 6, 32).to(dtype)
    query_lens, context_lens = (tuple(pair[i] for pair in lens) for i in range(2))
    spans = AttentionSpans(query_lens, context_lens, tables, _BLOCK, unbatched)
    return AttentionArguments(query, key, value, spans, Scoring(0.2, **scoring))


@pytest.mark.parametrize("window", [None, 50])
def test_long_spans_are_pytorchs_and_all_others_stay_in_c(
    window: int | None, by_reference: list[tuple[int, ...]]
) -> None:
    given = arguments_of(MIXED, window=window)
    found = [long_prompts.paged_attention(given) for _ in range(2)]
    assert by_reference == [(130, 140)] * 2
    expected = attention.paged_attention(given)
    torch.testing.assert_close(found[0].float(), expected.float(), atol=2e-2, rtol=2e-2)
    assert torch.equal(found[0], found[1])
    for rows in (slice(0, 1), slice(271, 398)):
        assert torch.equal(found[0][rows], expected[rows]), "the bits of C"


def test_a_step_of_long_spans_alone_is_pytorchs(by_reference: list[tuple[int, ...]]) -> None:
    given = arguments_of(((128, 128), (0, 9), (200, 200)))
    found = long_prompts.paged_attention(given)
    assert by_reference == [(128, 0, 200)]
    expected = attention.paged_attention(given)
    torch.testing.assert_close(found.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    "others",
    [
        {"dtype": torch.float32},
        {"unbatched": True},
        {"soft_cap": 20.0},
        {"sinks": torch.zeros(6)},
        {"slopes": torch.ones(6)},
    ],
)
def test_what_pytorch_has_no_function_for_stays_in_c(
    others: dict[str, Any], by_reference: list[tuple[int, ...]]
) -> None:
    given = arguments_of(MIXED, **others)
    assert torch.equal(long_prompts.paged_attention(given), attention.paged_attention(given))
    assert by_reference == []


def test_a_processor_without_tiles_has_all_in_c(
    by_reference: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_prompts, "has_amx", lambda: False)
    given = arguments_of(MIXED)
    assert torch.equal(long_prompts.paged_attention(given), attention.paged_attention(given))
    assert by_reference == []
