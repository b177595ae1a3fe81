"""Attention over latents against plain arithmetic: decodes, chunks and whole prompts, over blocks in any order.

In C and by the reference: latents of 16 and 8 numbers fill vectors of 4, those of 12 and 5 do not.
"""

import sys
from typing import NamedTuple

import pytest
import torch
from penstock_kernels import (
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    latent_attention,
    reference,
    rotate_and_store_latents,
    table,
)
from penstock_kernels.native import latent_attention as native
from penstock_kernels.native import latents as native_latents

Case = tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
HEADS, BLOCK = 6, 4
QUERY_LENS, CONTEXT_LENS = (1, 5, 1, 9), (7, 5, 1, 14)


class Sizes(NamedTuple):
    """Numbers of a latent, of what is rotated, of the rest of a query, and of a value."""

    rank: int
    rope: int
    nope: int
    value: int


IN_C, BY_REFERENCE = Sizes(16, 8, 12, 10), Sizes(11, 4, 6, 5)


def naive(
    query: torch.Tensor, latents: torch.Tensor, ups: tuple[torch.Tensor, torch.Tensor], scale: float
) -> torch.Tensor:
    """One span: every key and every value, one query and one head after the other."""
    rank, first = ups[0].shape[1], len(latents) - len(query)
    output = torch.empty(len(query), HEADS, ups[1].shape[1])
    for head in range(HEADS):
        keys = torch.cat((latents[:, :rank] @ ups[0][head], latents[:, rank:]), dim=1)
        values = latents[:, :rank] @ ups[1][head].T
        for row in range(len(query)):
            seen = first + row + 1
            scores = keys[:seen] @ query[row, head] * scale
            output[row, head] = scores.softmax(0) @ values[:seen]
    return output


def parts(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of each span."""
    return torch.split(rows, list(QUERY_LENS))


def make_case(sizes: Sizes) -> Case:
    """Queries, latents of each span, the cache that holds them, its tables, and the ways up."""
    generator = torch.Generator().manual_seed(0)
    width = sizes.rank + sizes.rope
    query = torch.randn(sum(QUERY_LENS), HEADS, sizes.nope + sizes.rope, generator=generator)
    latents = [torch.randn(length, width, generator=generator) for length in CONTEXT_LENS]
    tables = torch.randperm(16, generator=generator).view(4, 4).int()
    cache = torch.full((16, BLOCK, 1, width), torch.nan)
    for rows, blocks in zip(latents, tables.long(), strict=True):
        positions = torch.arange(len(rows))
        cache.flatten(0, 2)[blocks[positions // BLOCK] * BLOCK + positions % BLOCK] = rows
    ups = (
        torch.randn(HEADS, sizes.rank, sizes.nope, generator=generator),
        torch.randn(HEADS, sizes.value, sizes.rank, generator=generator),
    )
    return query, latents, cache, tables, ups


@pytest.fixture(params=[IN_C, BY_REFERENCE], ids=["C", "reference"])
def case(request: pytest.FixtureRequest) -> Case:
    """One for each way to compute it."""
    return make_case(request.param)


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


@pytest.mark.parametrize("most_numbers", [1, 2**26])
@pytest.mark.parametrize("longest", [0, 1, 5, 9])
def test_long_spans_in_c_have_keys_and_values(
    monkeypatch: pytest.MonkeyPatch, longest: int, most_numbers: int
) -> None:
    """Beside others, which are computed as latents."""
    query, latents, cache, tables, ups = make_case(Sizes(16, 8, 12, 12))
    monkeypatch.setattr(native, "is_worth_expanding", lambda _, length, context: length > longest)
    monkeypatch.setattr(native, "_MOST_NUMBERS", most_numbers)
    arguments = LatentArguments(
        query, cache, *ups, AttentionSpans(QUERY_LENS, CONTEXT_LENS, tables, BLOCK), 0.4
    )
    for lanes in (0, 4):
        found = native.latent_attention(arguments, lanes)
        for part, rows, got in zip(parts(query), latents, parts(found), strict=True):
            torch.testing.assert_close(got, naive(part, rows, ups, 0.4))


def test_a_span_has_keys_and_values_where_that_takes_fewer_operations() -> None:
    def is_expanded(query_len: int, context_len: int, value: int = 128) -> bool:
        spans = AttentionSpans((query_len,), (context_len,), torch.zeros(1, 1).int(), 4)
        given = torch.empty(1, 16, 192), torch.empty(1, 4, 1, 576)
        ups = torch.empty(16, 512, 128), torch.empty(16, value, 512)
        arguments = LatentArguments(*given, *ups, spans, 1.0)
        return native.is_worth_expanding(arguments, query_len, context_len)

    assert [is_expanded(length, 4096) for length in (8, 128, 512, 4096)] == [False, False, True, True]
    assert is_expanded(128, 128)
    assert not is_expanded(8, 8)
    # Values of 130 numbers fill no vectors.
    assert not is_expanded(512, 4096, 130)


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
    query, _, cache, tables, ups = case
    spans = AttentionSpans(QUERY_LENS, CONTEXT_LENS, tables, BLOCK)
    with pytest.raises(ValueError, match="latent_attention: query"):
        latent_attention(query[..., 1:], cache, *ups, spans, 1.0)
    with pytest.raises(ValueError, match="must be contiguous"):
        latent_attention(
            query, cache, ups[0], ups[1].transpose(0, 1).contiguous().transpose(0, 1), spans, 1.0
        )


def test_spans_that_the_reference_takes_are_those_of_its_sizes(case: Case) -> None:
    query, _, cache, tables, ups = case
    spans = AttentionSpans(QUERY_LENS, CONTEXT_LENS, tables, BLOCK)
    arguments = LatentArguments(query, cache, *ups, spans, 0.4)
    is_in_c = ups[0].shape[1] == IN_C.rank
    assert table.latent_attention.choose(arguments) is (
        native.latent_attention if is_in_c else reference.latent_attention
    )


def _step(
    rows: int, sizes: Sizes, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, float], torch.Tensor, torch.Tensor]:
    """Queries, latents on their way to the cache, their norm, cosines and sines."""
    query = torch.randn(rows, HEADS, sizes.nope + sizes.rope).to(dtype)
    down = torch.randn(rows, 3 + sizes.rank + sizes.rope).to(dtype)[:, 3:]
    angles = torch.randn(2, rows, sizes.rope).to(dtype)
    return query, down, (torch.randn(sizes.rank).to(dtype), 1e-6), angles[0], angles[1]


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("sizes", [IN_C, Sizes(64, 32, 16, 10), Sizes(512, 64, 8, 10)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rotates", [True, False])
def test_what_is_stored_equals_its_reference(
    lanes: int, sizes: Sizes, dtype: torch.dtype, rotates: bool
) -> None:
    query, down, norm, *angles = _step(7, sizes, dtype)
    cos, sin = angles if rotates else (None, None)
    positions = torch.randperm(20)[:7]
    caches = torch.full((2, 5, BLOCK, 1, sizes.rank + sizes.rope), torch.nan, dtype=dtype)
    queries = query.clone(), query.clone()
    native_latents.rotate_and_store_latents(queries[0], down, norm, cos, sin, caches[0], positions, lanes)
    reference.rotate_and_store_latents(queries[1], down, norm, cos, sin, caches[1], positions)
    # The reference rounds after every op of PyTorch.
    atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (0.1, 0.02)
    torch.testing.assert_close(queries[0], queries[1], atol=atol, rtol=rtol)
    assert torch.equal(queries[0][..., : sizes.nope], query[..., : sizes.nope])
    assert torch.equal(queries[0], query) != rotates
    torch.testing.assert_close(caches[0], caches[1], atol=atol, rtol=rtol, equal_nan=True)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("heads", [1, 5, 6, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_step(lanes: int, heads: int, dtype: torch.dtype) -> None:
    sizes, contexts = Sizes(64, 32, 48, 16), (1, 64, 65, 200)
    query = torch.randn(4, heads, sizes.nope + sizes.rope).to(dtype)
    cache = torch.randn(60, BLOCK, 1, sizes.rank + sizes.rope).to(dtype)
    key_up = (torch.randn(heads, sizes.rank, sizes.nope) / 8).to(dtype)
    value_up = (torch.randn(heads, sizes.value, sizes.rank) / 8).to(dtype)
    tables = torch.randperm(60)[:50].int().expand(4, -1).contiguous()

    def attend(*members: int) -> torch.Tensor:
        rows, lens = list(members), tuple(contexts[member] for member in members)
        spans = AttentionSpans((1,) * len(members), lens, tables[rows], BLOCK)
        given = LatentArguments(query[rows], cache, key_up, value_up, spans, 0.1)
        return native.latent_attention(given, lanes)

    whole = attend(0, 1, 2, 3)
    for member in range(4):
        assert torch.equal(attend(member)[0], whole[member])
    assert torch.equal(attend(3, 1), whole[[3, 1]])
    spans = AttentionSpans((1,) * 4, contexts, tables, BLOCK)
    exact = LatentArguments(query.double(), cache.double(), key_up.double(), value_up.double(), spans, 0.1)
    expected = reference.latent_attention(exact).to(dtype)
    atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (0.05, 0.05)
    torch.testing.assert_close(whole, expected, atol=atol, rtol=rtol)


def test_what_cannot_be_stored_is_refused() -> None:
    query, down, norm, cos, sin = _step(2, IN_C)
    cache, positions = torch.zeros(3, BLOCK, 1, IN_C.rank + IN_C.rope), torch.tensor([0, 3])
    with pytest.raises(ValueError, match="latents \\(2, 23\\) of rank 16 against cache"):
        rotate_and_store_latents(query, down[:, 1:], norm, cos, sin, cache, positions)
    with pytest.raises(ValueError, match="cache_positions must be int64"):
        rotate_and_store_latents(query, down, norm, cos, sin, cache, positions.int())
    with pytest.raises(ValueError, match="cos \\(1, 8\\)"):
        rotate_and_store_latents(query, down, norm, cos[1:], sin[1:], cache, positions)
    with pytest.raises(ValueError, match="cos and sin, or none"):
        rotate_and_store_latents(query, down, norm, cos, None, cache, positions)
    with pytest.raises(IndexError, match="cache position 12 of token 1"):
        rotate_and_store_latents(query, down, norm, cos, sin, cache, torch.tensor([0, 12]))
    assert not cache.any()
