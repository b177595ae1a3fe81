"""The ops in C: every width of vectors, and the same bits for a row whatever else is computed."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    AdapterWeights,
    AttentionArguments,
    AttentionSpans,
    NormOfHeads,
    Scoring,
    all_finite,
    embedding,
    find_decodes,
    find_spans,
    linear,
    paged_attention,
    reference,
    rotary_table,
    rotate_and_store,
)
from penstock_kernels.native import adapters as native_adapters
from penstock_kernels.native import attention as native
from penstock_kernels.native import linear as native_linear
from penstock_kernels.native.library import library

_LEN, _BLOCK = 300, 16


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Sequence:
    """A prompt of _LEN tokens whose keys and values are in scattered blocks of a cache."""

    def __init__(
        self, num_heads: int, num_kv_heads: int, dim: int, dtype: torch.dtype = torch.float32
    ) -> None:
        shape = (40, _BLOCK, num_kv_heads, dim)
        self.key, self.value = (torch.randn(shape).to(dtype) for _ in range(2))
        self.query = torch.randn(_LEN, num_heads, dim).to(dtype)
        self.table = torch.randperm(40)[: -(-_LEN // _BLOCK)].int()

    def of_head(self, head: int, group: int) -> "Sequence":
        """The same with one head of keys and values, where they are in this cache."""
        part = copy(self)
        part.key, part.value = (cache[:, :, head : head + 1] for cache in (self.key, self.value))
        part.query = self.query[:, head * group : (head + 1) * group]
        return part

    def attend(
        self, *rows: tuple[int, int], window: int | None = None, chunk: int | None = None
    ) -> list[torch.Tensor]:
        """Each (start, end) as a span of one call; the results of each."""
        lens = tuple(end - start for start, end in rows)
        tables = self.table.repeat(len(rows), 1)
        spans = AttentionSpans(lens, tuple(end for _, end in rows), tables, _BLOCK, unbatched=True)
        query = torch.cat([self.query[start:end] for start, end in rows])
        found = paged_attention(query, self.key, self.value, spans, Scoring(0.2, window, chunk=chunk))
        return list(torch.split(found, list(lens)))


def test_it_is_built() -> None:
    assert library() is not None, "no C compiler when penstock-kernels was installed?"


@pytest.mark.parametrize("reach", [{}, {"window": 50}, {"chunk": 50}, {"chunk": 128}])
@pytest.mark.parametrize("heads", [(4, 4, 48), (7, 1, 64), (6, 2, 16), (24, 12, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(
    heads: tuple[int, int, int], dtype: torch.dtype, reach: dict[str, int]
) -> None:
    sequence = Sequence(*heads, dtype)
    [whole] = sequence.attend((0, _LEN), **reach)
    for start, end in ((0, 1), (63, 64), (100, 133), (171, 300), (299, 300)):
        [alone] = sequence.attend((start, end), **reach)
        assert torch.equal(alone, whole[start:end])
        in_batch = sequence.attend((5, 70), (start, end), (250, 251), **reach)[1]
        assert torch.equal(in_batch, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_share_keys_have_the_same_bits_whatever_their_number(dtype: torch.dtype) -> None:
    """Row counts: as many as are computed together, one more, one less, and as many as are worth a copy of the keys."""
    for num_heads in range(1, 19):
        sequence = Sequence(num_heads, 1, 48, dtype)
        [whole] = sequence.attend((0, _LEN))
        for start, end in ((200, 201), (299, 300), (100, 102)):
            [alone] = sequence.attend((start, end))
            assert torch.equal(alone, whole[start:end]), (num_heads, start)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("heads", [(12, 12, 64), (16, 8, 32), (5, 5, 48), (48, 24, 128)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_are_read_together_have_the_bits_of_each_alone(
    dtype: torch.dtype, heads: tuple[int, int, int], threads: int
) -> None:
    """Spans of one token, of a few and of many are computed by different numbers of heads at a time."""
    sequence, group, before = Sequence(*heads, dtype), heads[0] // heads[1], torch.get_num_threads()
    for rows in ([(299, 300)], [(60, 61), (63, 67), (0, 1), (200, 300), (127, 129), *[(250, 251)] * 12]):
        torch.set_num_threads(threads)
        try:
            together = sequence.attend(*rows)
        finally:
            torch.set_num_threads(before)
        for head in range(heads[1]):
            alone = sequence.of_head(head, group).attend(*rows)
            for found, expected in zip(together, alone, strict=True):
                assert torch.equal(found[:, head * group : (head + 1) * group], expected)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dim", [12, 40, 64, 80])
@pytest.mark.parametrize("slopes", [None, [0.5, 0.25, 0.1, 0.05, 0.02, 0.01]], ids=["flat", "slopes"])
@pytest.mark.parametrize(
    "options",
    [{}, {"window": 33, "soft_cap": 3.0}, {"chunk": 48}],
    ids=["plain", "window and soft cap", "chunks"],
)
def test_every_width_of_vectors_equals_the_reference(
    lanes: int, dim: int, options: dict[str, Any], slopes: list[float] | None
) -> None:
    sequence = Sequence(6, 3, dim)
    spans = AttentionSpans((_LEN - 7,), (_LEN,), sequence.table[None], _BLOCK)
    scoring = Scoring(0.2, **options, slopes=None if slopes is None else torch.tensor(slopes))
    arguments = AttentionArguments(sequence.query[7:], sequence.key, sequence.value, spans, scoring)
    found = native.paged_attention(arguments, max_lanes=lanes)
    expected = reference.paged_attention(arguments)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dim", [16, 48, 64, 80, 96])
@pytest.mark.parametrize("num_rows", [1, 5, 40])
def test_16_bit_keys_and_values_equal_the_reference(lanes: int, dim: int, num_rows: int) -> None:
    """Also with an odd number of positions, behind which the cache holds anything."""
    sequence = Sequence(6, 3, dim, torch.bfloat16)
    for context in (num_rows, 66, 133, 192):
        at = int(sequence.table[context // _BLOCK]), context % _BLOCK
        key, value = sequence.key.clone(), sequence.value.clone()
        key[at] = value[at] = float("nan")
        spans = AttentionSpans((num_rows,), (context,), sequence.table[None], _BLOCK)
        scoring = Scoring(0.2, window=50)
        arguments = AttentionArguments(sequence.query[:num_rows], key, value, spans, scoring)
        found = native.paged_attention(arguments, max_lanes=lanes)
        expected = reference.paged_attention(arguments)
        torch.testing.assert_close(found, expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("context", [32, 77, 140])
def test_a_tree_of_any_form_equals_the_reference(lanes: int, dtype: torch.dtype, context: int) -> None:
    """A tree of 32 tokens from the first position, across the end of a tile, and with heads that fill several tiles."""
    sequence = Sequence(6, 2, 48, dtype)
    tree = torch.randint(-(2**31), 2**31, (32,)).int() | 1
    spans = AttentionSpans((32,), (context,), sequence.table[None], _BLOCK, tree=tree)
    arguments = AttentionArguments(sequence.query[:32], sequence.key, sequence.value, spans, Scoring(0.2))
    found = native.paged_attention(arguments, max_lanes=lanes)
    atol = 2e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, reference.paged_attention(arguments), atol=atol, rtol=1e-2)
    causal = replace(arguments, spans=replace(spans, tree=None))
    all_seen = replace(arguments, spans=replace(spans, tree=torch.full_like(tree, -1)))
    plain = native.paged_attention(causal, max_lanes=lanes)
    assert torch.equal(plain, native.paged_attention(all_seen, max_lanes=lanes))
    assert not torch.allclose(plain, found, atol=1e-1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_query_that_is_not_finite_is_not_hidden(bad: float) -> None:
    sequence = Sequence(2, 2, 16)
    sequence.query[120, 1, 3] = bad
    [found] = sequence.attend((100, 130))
    assert found[20, 1].isnan().all()
    assert found[19].isfinite().all()
    assert found[20, 0].isfinite().all()


def test_threads_change_nothing() -> None:
    sequence = Sequence(4, 4, 64)
    [one], threads = sequence.attend((0, _LEN)), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        [three] = sequence.attend((0, _LEN))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, three)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 100), (96, 37), (64, 16), (544, 200), (20, 3), (12, 1)])
def test_a_product_has_the_same_bits_in_any_batch(shape: tuple[int, int], dtype: torch.dtype) -> None:
    length, columns = shape
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((530, length), (columns, length), (columns,)))
    whole = linear(x, weight, bias, invariant=True)
    assert torch.equal(linear(x, weight, bias, invariant=False), whole)
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), expected, atol=2e-5 * length, rtol=1e-2)
    for rows in (
        slice(0, 1),
        slice(7, 10),
        slice(3, 9),
        slice(3, 39),
        slice(4, 20),
        slice(60, 131),
        slice(9, 280),
    ):
        assert torch.equal(linear(x[rows], weight, bias, invariant=True), whole[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lanes", [0, 4])
def test_rows_may_lie_in_any_order(lanes: int, dtype: torch.dtype) -> None:
    weight, numbers = torch.randn(20, 64).to(dtype), torch.randn(128, 130).to(dtype)
    turned, part = numbers[:64].T, numbers[:, 8:72]
    for x in (turned, part, part[::3], numbers[::2, :].T, part[:1].expand(5, -1), part[:0]):
        found, expected = (
            native_linear.multiply(rows, [weight], None, max_lanes=lanes)
            for rows in (x, x.clone().contiguous())
        )
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize(("length", "columns"), [(64, 113), (1024, 75), (1032, 75), (2560, 779)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_of_many_rows_has_the_bits_of_few(
    lanes: int, length: int, columns: int, dtype: torch.dtype
) -> None:
    """Also of rows that are taken in parts, and of columns that two threads take in the largest shares."""
    x, weight = torch.randn(303, length).to(dtype), torch.randn(columns, length + 40).to(dtype)[:, :length]
    whole = native_linear.multiply(x, (weight,), None, lanes)
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(whole.double(), expected, atol=1e-2, rtol=1e-2)
    few = [slice(20, 20 + count) for count in range(1, 10)]
    for rows in (*few, slice(90, 93), slice(94, 101), slice(5, 24), slice(1, 98), slice(7, 300)):
        assert torch.equal(native_linear.multiply(x[rows], (weight,), None, lanes), whole[rows])


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_width_of_vectors_multiplies(lanes: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(71, 64).to(dtype), torch.randn(70, 80).to(dtype)[:, :64]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    for num_rows in (1, 2, 3, 9, 71):
        found = native_linear.multiply(x[:num_rows], (weight,), None, lanes)
        expected = (x[:num_rows].double() @ weight.T.double()).to(dtype)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", [(16, 16), (1, 7), (0, 3000)])
def test_every_width_of_vectors_adapts(lanes: int, dtype: torch.dtype, ranks: tuple[int, int]) -> None:
    counts, length = (70, 93), 64
    first = torch.tensor([0 if ranks[0] else -1] * counts[0] + [ranks[0]] * counts[1], dtype=torch.int32)
    up = torch.zeros(max(ranks), sum(counts))
    up[: ranks[0], : counts[0]] = torch.randn(ranks[0], counts[0])
    up[: ranks[1], counts[0] :] = torch.randn(ranks[1], counts[1])
    down = torch.randn(sum(ranks), length) / sum(ranks)
    vectors = torch.randn(2, sum(counts))
    table = AdapterTable(2, torch.device("cpu"))
    table.place(0, AdapterWeights(down.to(dtype), up.to(dtype), first))
    table.place(1, AdapterWeights(down.to(dtype), up.to(dtype), first, vectors[0], vectors[1]))
    rows, x = AdapterRows(torch.tensor([1, 0, -1])), torch.randn(3, length).to(dtype)
    output = torch.randn(3, sum(counts)).to(dtype)
    expected = reference.add_adapters(output.clone(), x, rows, table)
    found = native_adapters.add_adapters(output, x, rows, table, lanes)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [5, 100])
def test_weights_that_lie_apart_multiply_like_one(dtype: torch.dtype, threads: int, rows: int) -> None:
    x, weight, bias = (torch.randn(size).to(dtype) for size in ((rows, 64), (2401, 64), (2401,)))
    parts = tuple(part.clone() for part in torch.split(weight, [1, 31, 33, 2336]))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        joined = native_linear.multiply(x, (weight,), bias)
        assert torch.equal(native_linear.multiply(x, parts, bias), joined)
        invariant = linear(x, parts, bias, invariant=True)
        assert torch.equal(invariant, linear(x, weight, bias, invariant=True))
        torch.testing.assert_close(linear(x, parts, bias), linear(x, weight, bias), atol=1e-5, rtol=1e-2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", range(18, 31))
def test_any_number_of_rows_and_columns_is_multiplied(dtype: torch.dtype, rows: int) -> None:
    """Where columns are turned: blocks of every size, and columns that fill four vectors, two, one and none."""
    num_rows = rows if dtype == torch.bfloat16 else rows + 96
    weight, bias = torch.randn(64 + 32 + 16 + 5, 64).to(dtype), torch.randn(64 + 32 + 16 + 5).to(dtype)
    x = torch.randn(num_rows, 64).to(dtype)
    found = native_linear.multiply(x, (weight,), bias)
    alone = [native_linear.multiply(x[row : row + 1], (weight,), bias) for row in range(num_rows)]
    assert torch.equal(found, torch.cat(alone))
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(found.double(), expected, atol=1e-2, rtol=1e-2)


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [1040, 2048, 4128, 8256])
def test_long_rows_have_the_same_bits_in_any_batch(dtype: torch.dtype, length: int) -> None:
    """Rows of several chains, as vectors of 16 numbers have them, and more rows than sums wait for."""
    weight, bias = torch.randn(64 + 5, length).to(dtype), torch.randn(64 + 5).to(dtype)
    x = torch.randn(521, length).to(dtype)
    found = native_linear.multiply(x, (weight,), bias)
    for num_rows in (1, 2, 3, 4, 5, 7, 8, 9, 15, 20, 97, 130):
        assert torch.equal(native_linear.multiply(x[:num_rows], (weight,), bias), found[:num_rows])
    expected = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(found.double(), expected, atol=1e-3 * length**0.5, rtol=1e-2)


@pytest.mark.parametrize("rows", [3, 100])
def test_a_product_with_what_is_not_finite_shows_it(rows: int) -> None:
    x, weight = torch.randn(rows, 32), torch.randn(70, 32)
    x[1, 4] = float("nan")
    found = linear(x, weight)
    assert found[1].isnan().all()
    assert found[[0, *range(2, rows)]].isfinite().all()


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="against weight"):
        linear(torch.zeros(2, 3), torch.zeros(4, 5))


def test_a_weight_of_another_type_is_refused() -> None:
    heads, angles, cache = (
        torch.zeros(1, 3, 16).bfloat16(),
        torch.zeros(1, 16).bfloat16(),
        torch.zeros(1, 4, 1, 16),
    )
    given = (heads, angles, angles, cache.bfloat16(), cache.bfloat16(), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"dtypes differ: heads torch\.bfloat16, norm_weight torch\.float32"):
        rotate_and_store(*given, NormOfHeads(torch.ones(2, 16)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_embedding_has_zeros_for_tokens_of_others(dtype: torch.dtype) -> None:
    weight, ids = torch.randn(10, 7).to(dtype), torch.tensor([5, 4, 14, 15, 9])
    expected = torch.stack(
        [weight[0], torch.zeros(7).to(dtype), weight[9], torch.zeros(7).to(dtype), weight[4]]
    )
    assert torch.equal(embedding(ids, weight, 5), expected)
    assert torch.equal(embedding(ids, weight, 5), reference.embedding(ids, weight, 5))
    assert torch.equal(embedding(ids[:0], weight, 5), expected[:0])


@pytest.mark.parametrize("count", [0, 1, 5, 900])
def test_a_rotary_table_equals_its_reference(count: int) -> None:
    positions = torch.arange(count) * 137
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, 24, 2) / 24)
    found = rotary_table(positions, inv_freq, 1.3)
    for ours, expected in zip(found, reference.rotary_table(positions, inv_freq, 1.3), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)
    if count > 4:
        assert torch.equal(rotary_table(positions[4:5], inv_freq, 1.3)[1], found[1][4:5])


def test_decodes_are_found_where_the_rows_have_them() -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    slots, positions = torch.tensor([4, 6, 0, 6]), torch.tensor([29, 0, 7, 0])
    given = (slots, positions, tokens, block_table, 4, 6)
    found = find_decodes(*given)
    for ours, expected in zip(found[:4], reference.find_decodes(*given)[:4], strict=True):
        assert torch.equal(ours, expected)
        assert ours.dtype == expected.dtype
    assert found.query_starts is None
    assert found.token_ids.tolist() == [tokens[4, 29], tokens[6, 0], tokens[0, 7], tokens[6, 0]]
    assert found.cache_positions.tolist()[2] == block_table[0, 1] * 4 + 3
    assert found.context_lens.tolist() == [30, 0, 8, 0], "the spare row has no context"
    with pytest.raises(ValueError, match="int64"):
        find_decodes(slots.int(), positions.int(), tokens, block_table, 4, 6)


@pytest.mark.parametrize("lens", [[1], [3, 0, 1, 7], [0, 0, 5], [0], [2, 1] * 3])
@pytest.mark.parametrize("num_more", [0, 1, 9])
def test_rows_of_spans_are_found(lens: list[int], num_more: int) -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    slots, starts = torch.randperm(6)[: len(lens)], torch.randint(0, 20, (len(lens),))
    given = (slots, starts, torch.tensor(lens), sum(lens) + num_more, tokens, block_table, 4, 6)
    for ours, expected in zip(find_spans(*given), reference.find_spans(*given), strict=True):
        assert torch.equal(ours, expected)
        assert ours.dtype == expected.dtype


@pytest.mark.parametrize("find", [find_decodes, reference.find_decodes])
def test_rows_that_follow_each_other_are_joined(find: Callable[..., Any]) -> None:
    rows = torch.randint(0, 99, (7, 40), dtype=torch.int32)
    block_table, tokens = rows[:, :9], rows[:, 10:40]
    # Ten of slot 2, of which eight are a span; two of slot 0 that do not follow each other, two of slot 3, two spare.
    slots = torch.tensor([2] * 10 + [0, 0, 3, 3, 6, 6])
    positions = torch.tensor([*range(5, 15), 4, 6, 7, 8, 0, 0])
    given = (slots, positions, tokens, block_table, 4, 6)
    found, apart = find(*given, 8), find(*given)
    assert torch.equal(found.token_ids, apart.token_ids)
    assert torch.equal(found.cache_positions, apart.cache_positions)
    assert found.query_starts.tolist() == [0, 8, 10, 11, 12, 14, 15, *[16] * 10]
    assert found.context_lens.tolist() == [13, 15, 5, 7, 9, 0, 0, *[0] * 9]
    assert found.query_starts.dtype == found.context_lens.dtype == torch.int32
    assert torch.equal(found.block_tables[:7], block_table[[2, 2, 0, 0, 3, 6, 6]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_found_wherever_it_is(dtype: torch.dtype, bad: float) -> None:
    x = torch.full((7, 90_001), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite(x)
    assert all_finite(-x)
    for row, column in ((0, 0), (3, 89_999), (6, 90_000)):
        x[row, column] = bad
        assert not all_finite(x)
        assert not all_finite(x[row])
        assert all_finite(x[:, :column]), "a window of columns, which ends before"
        assert not reference.all_finite(x)
        x[row, column] = 0
    assert all_finite(x[:0])
    assert all_finite(torch.zeros(3, dtype=torch.float64))
