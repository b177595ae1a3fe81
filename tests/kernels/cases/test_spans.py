"""The values that a step reads from the rows of its slots, and prompts in a graph, against their references."""

import pytest
import torch
from attention_case import Case, Shape, slopes_of
from closeness import assert_close
from penstock_kernels import (
    AttentionArguments,
    Scoring,
    find_decodes,
    find_spans,
    paged_attention,
    reference,
)
from penstock_kernels.base.devices import runs_kernels

BLOCK_SIZE, NUM_BLOCKS, NUM_SLOTS = 4, 30, 70
SPARE = NUM_SLOTS


def _rows(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and block tables of all slots, as columns of one buffer."""
    width = BLOCK_SIZE * NUM_BLOCKS
    buffer = torch.randint(0, 1000, (NUM_SLOTS + 1, NUM_BLOCKS + 3 + width), dtype=torch.int32, device=device)
    return buffer[:, NUM_BLOCKS + 3 :], buffer[:, :NUM_BLOCKS]


@pytest.mark.parametrize("lens", [[1], [3, 0, 1, 7], [0, 0, 5], [0], [1] * 70, [2, 1] * 30])
@pytest.mark.parametrize("num_more", [0, 1, 40])
def test_find_spans(lens: list[int], num_more: int, device: torch.device) -> None:
    tokens, tables = _rows(device)
    slots = torch.randperm(NUM_SLOTS, device=device)[: len(lens)]
    starts = torch.randint(0, 100, (len(lens),), device=device)
    given = (slots, starts, torch.tensor(lens, device=device), sum(lens) + num_more, tokens, tables)
    found = find_spans(*given, BLOCK_SIZE, SPARE)
    expected = reference.find_spans(*given, BLOCK_SIZE, SPARE)
    for one, other in zip(found[:5], expected[:5], strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    _check_tables(found.block_tables, expected.block_tables, expected.context_lens)


@pytest.mark.parametrize("num_rows", [1, 3, 63, 70])
def test_find_decodes(num_rows: int, device: torch.device) -> None:
    tokens, tables = _rows(device)
    slots = torch.randperm(NUM_SLOTS, device=device)[:num_rows]
    positions = torch.randint(0, 100, (num_rows,), device=device)
    slots[num_rows // 2], positions[num_rows // 2] = SPARE, 0
    given = (slots, positions, tokens, tables, BLOCK_SIZE, SPARE)
    found, expected = find_decodes(*given), reference.find_decodes(*given)
    for one, other in zip(found[:3], expected[:3], strict=True):
        assert torch.equal(one, other)
    _check_tables(found.block_tables, expected.block_tables, expected.context_lens)


def _check_tables(found: torch.Tensor, expected: torch.Tensor, contexts: torch.Tensor) -> None:
    for one, other, context in zip(found, expected, contexts.tolist(), strict=True):
        num_used = -(-context // BLOCK_SIZE)
        assert torch.equal(one[:num_used], other[:num_used])


STEPS = [
    [(1, 70), (33, 70), (1, 200), (17, 17), (5, 90)],
    [(40, 140), (1, 1), (9, 9), (1, 65)],
    [(1, 3), (2, 40)],
]


@pytest.mark.parametrize("lens", STEPS)
@pytest.mark.parametrize(("window", "has_slopes"), [(None, False), (30, False), (None, True)])
@pytest.mark.parametrize("decode_len", [1, 8])
def test_prompts_in_a_graph(
    lens: list[tuple[int, int]],
    window: int | None,
    has_slopes: bool,
    decode_len: int,
    device: torch.device,
) -> None:
    """Beside spans that pad the step, and rows behind the last span."""
    case = Case(Shape(num_heads=6), [*lens, (0, 0), (0, 0)], device)
    scale = case.shape.dim**-0.5
    slopes = slopes_of(case.shape.num_heads, device) if has_slopes else None
    scoring = Scoring(scale, window, slopes=slopes)
    padded = torch.cat((case.query, case.query.new_full((7, *case.query.shape[1:]), torch.nan)))
    spans = case.decode_spans(max_query_len=decode_len, num_prompts=4)
    arguments = AttentionArguments(padded, case.key_cache, case.value_cache, spans, scoring)
    expected = case.expected(scale, window=window, slopes=slopes)
    assert_close(reference.paged_attention(arguments)[: len(expected)], expected)
    found = paged_attention(padded, case.key_cache, case.value_cache, spans, scoring)
    assert_close(found[: len(expected)], expected)


def test_prompts_in_a_graph_have_the_bits_that_they_have_free(device: torch.device) -> None:
    case = Case(Shape(num_kv_heads=1), [(1, 1500), (20, 90), (1, 70), (9, 300)], device)
    given, scoring = (case.query, case.key_cache, case.value_cache), Scoring(case.shape.dim**-0.5)
    free = paged_attention(*given, case.spans(unbatched=True), scoring)
    spans = case.decode_spans(max_query_len=1, num_prompts=2, unbatched=True)
    assert torch.equal(paged_attention(*given, spans, scoring), free)


@pytest.mark.parametrize("rows", [16, 128])
@pytest.mark.parametrize("group", [1, 6])
def test_the_map_of_prompts_is_that_of_the_host(rows: int, group: int, device: torch.device) -> None:
    if not runs_kernels(device):
        pytest.skip("no map is made")
    from penstock_kernels.gpu.prefill_map import prefill_map, prefill_tiles

    lens = [(1, 90), (100, 100), (9, 64), (0, 0), (31, 31), (8, 8), (60, 170)]
    case = Case(Shape(num_heads=1, num_kv_heads=1, dim=16), lens, device)
    prompts = [number for number, (length, _) in enumerate(lens) if length > 8]
    queries, contexts = ([lens[number][i] for number in prompts] for i in range(2))
    expected = prefill_tiles(prompts, queries, contexts, group, rows)
    found = prefill_map(case.decode_spans(max_query_len=8, num_prompts=4), 230, group, rows)
    assert found.flatten().tolist()[: len(expected)] == expected
    assert set(found[len(expected) // 2 :, 0].tolist()) == {-1}, "the rest is idle"
