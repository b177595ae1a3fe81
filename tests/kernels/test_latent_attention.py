"""Attention over latents against plain arithmetic: decodes, chunks and whole prompts, over blocks in any order."""

import sys

import pytest
import torch
from penstock_kernels import AttentionSpans, DecodeSpans, latent_attention, store_latents

Case = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
RANK, ROPE, NOPE, VALUE, HEADS, BLOCK = 12, 4, 6, 5, 3, 4
QUERY_LENS, CONTEXT_LENS = (1, 5, 1, 3), (7, 5, 1, 14)


def naive(
    query: torch.Tensor, latents: torch.Tensor, ups: tuple[torch.Tensor, torch.Tensor], scale: float
) -> torch.Tensor:
    """One span: every key and every value, one query and one head after the other."""
    output, first = torch.empty(len(query), HEADS, VALUE), len(latents) - len(query)
    for head in range(HEADS):
        keys = torch.cat((latents[:, :RANK] @ ups[0][head].T, latents[:, RANK:]), dim=1)
        values = latents[:, :RANK] @ ups[1][head].T
        for row in range(len(query)):
            seen = first + row + 1
            scores = keys[:seen] @ query[row, head] * scale
            output[row, head] = scores.softmax(0) @ values[:seen]
    return output


def parts(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of each span."""
    return torch.split(rows, list(QUERY_LENS))


@pytest.fixture
def case() -> Case:
    """Queries, latents of each span, the cache that holds them, its tables, and the ways up."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(sum(QUERY_LENS), HEADS, NOPE + ROPE, generator=generator)
    latents = [torch.randn(length, RANK + ROPE, generator=generator) for length in CONTEXT_LENS]
    tables = torch.randperm(16, generator=generator).view(4, 4).int()
    cache = torch.full((16, BLOCK, 1, RANK + ROPE), torch.nan)
    for rows, table in zip(latents, tables.long(), strict=True):
        positions = torch.arange(len(rows))
        store_latents(rows, cache, table[positions // BLOCK] * BLOCK + positions % BLOCK)
    ups = (
        torch.randn(HEADS, NOPE, RANK, generator=generator),
        torch.randn(HEADS, VALUE, RANK, generator=generator),
    )
    return query, latents, cache, tables, ups


@pytest.mark.parametrize("most_numbers", [1, 2**26])
@pytest.mark.parametrize("unbatched", [False, True])
def test_every_span_sees_its_context(
    case: Case,
    monkeypatch: pytest.MonkeyPatch,
    most_numbers: int,
    unbatched: bool,
) -> None:
    module = sys.modules["penstock_kernels.reference.latent_attention"]
    monkeypatch.setattr(module, "_MOST_NUMBERS", most_numbers)
    query, latents, cache, tables, ups = case
    spans = AttentionSpans(QUERY_LENS, CONTEXT_LENS, tables, BLOCK, unbatched)
    found = latent_attention(query, cache, *ups, spans, 0.4)
    for part, rows, got in zip(parts(query), latents, parts(found), strict=True):
        torch.testing.assert_close(got, naive(part, rows, ups, 0.4))


def test_spans_whose_lengths_the_device_knows(
    case: Case,
) -> None:
    query, latents, cache, tables, ups = case
    contexts = torch.tensor([7, 5, 0, 14], dtype=torch.int32)
    starts = torch.arange(5, dtype=torch.int32)
    spans = DecodeSpans(starts, contexts, tables, BLOCK, 1, 16)
    found = latent_attention(query[:4], cache, *ups, spans, 0.4)
    for row in (0, 1, 3):
        torch.testing.assert_close(found[row : row + 1], naive(query[row : row + 1], latents[row], ups, 0.4))


def test_what_does_not_fit_is_refused(
    case: Case,
) -> None:
    query, latents, cache, tables, ups = case
    spans = AttentionSpans(QUERY_LENS, CONTEXT_LENS, tables, BLOCK)
    with pytest.raises(ValueError, match="latent_attention: query"):
        latent_attention(query[..., 1:], cache, *ups, spans, 1.0)
    with pytest.raises(ValueError, match="store_latents: latents"):
        store_latents(latents[0][:, 1:], cache, torch.arange(7))
    with pytest.raises(ValueError, match="cache_positions must be int64"):
        store_latents(latents[0], cache, torch.arange(7).int())
