"""Adapters: rows of several and of none, ranks that differ, fused projections, embeddings, against arithmetic."""

from collections.abc import Callable

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    AdapterWeights,
    EmbeddingTable,
    EmbeddingWeights,
    adapt_embedding,
    add_adapters,
)

# Ranks of the projections of a fused layer, and their numbers of outputs.
COUNTS = (60, 7, 33)
NUM_COLUMNS = sum(COUNTS)


def adapter(
    ranks: tuple[int, ...], length: int, dtype: torch.dtype, device: torch.device, has_vectors: bool = False
) -> AdapterWeights:
    """Projections of these ranks side by side; a rank of 0 leaves its columns as they are."""
    width = max(ranks)
    down = (torch.randn(sum(ranks), length, device=device) / length**0.5).to(dtype)
    up, first = torch.zeros(width, NUM_COLUMNS, device=device), torch.empty(NUM_COLUMNS, device=device)
    begin = column = 0
    for rank, count in zip(ranks, COUNTS, strict=True):
        up[:rank, column : column + count] = torch.randn(rank, count, device=device)
        first[column : column + count] = begin if rank else -1
        begin, column = begin + rank, column + count
    vectors = torch.randn(2, NUM_COLUMNS, device=device) if has_vectors else (None, None)
    return AdapterWeights(down, up.to(dtype), first.int(), vectors[0], vectors[1])


def expected_row(output: torch.Tensor, x: torch.Tensor, weights: AdapterWeights) -> torch.Tensor:
    result, shrunk = output.double(), weights.down.double() @ x.double()
    for column, first in enumerate(weights.first.tolist()):
        if first < 0:
            continue
        if weights.factor is not None and weights.addend is not None:
            result[column] = result[column] * weights.factor[column] + weights.addend[column]
        taken = shrunk[first : first + weights.up.shape[0]]
        result[column] += weights.up[: len(taken), column].double() @ taken
    return result


Tables = Callable[[int, torch.dtype], AdapterTable]


@pytest.fixture
def table(device: torch.device, reach: Callable[[torch.Tensor], None]) -> Tables:
    """Five numbers, of which the third has nothing for this layer and the last is not used."""

    def make(length: int, dtype: torch.dtype) -> AdapterTable:
        made = AdapterTable(5, device)
        made.place(0, adapter((3, 0, 5), length, dtype, device))
        made.place(1, adapter((16, 16, 16), length, dtype, device, has_vectors=True))
        made.place(3, adapter((1, 70, 2), length, dtype, device))
        for weights in made.entries:
            for tensor in weights or ():
                if tensor is not None:
                    reach(tensor)
        return made

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [64, 200, 1000])
def test_each_row_gets_what_its_adapter_adds(
    length: int, dtype: torch.dtype, device: torch.device, table: Tables
) -> None:
    adapters = table(length, dtype)
    numbers = torch.tensor([1, -1, 0, 3, 2, 0, 1, -1, 3], device=device)
    x = torch.randn(len(numbers), length, device=device).to(dtype)
    output = torch.randn(len(numbers), NUM_COLUMNS, device=device).to(dtype)
    expected = output.double()
    for row, number in enumerate(numbers.tolist()):
        weights = adapters.entries[number] if number >= 0 else None
        if weights is not None:
            expected[row] = expected_row(output[row], x[row], weights)
    untouched = output.clone()
    assert add_adapters(output, x, AdapterRows(numbers), adapters) is output
    assert_close(output, expected)
    for row in (1, 4, 7):
        assert torch.equal(output[row], untouched[row])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_any_batch(
    dtype: torch.dtype, device: torch.device, table: Tables
) -> None:
    adapters = table(96, dtype)
    numbers = torch.tensor([0, 1, 3, -1, 1, 1, 0, 3, 2, 1, 0], device=device)
    x = torch.randn(len(numbers), 96, device=device).to(dtype)
    before = torch.randn(len(numbers), NUM_COLUMNS, device=device).to(dtype)
    whole = add_adapters(before.clone(), x, AdapterRows(numbers), adapters)
    for rows in (slice(0, 1), slice(2, 7), slice(9, 11)):
        alone = add_adapters(before[rows].clone(), x[rows], AdapterRows(numbers[rows]), adapters)
        assert torch.equal(alone, whole[rows])


def test_many_rows_of_one_adapter_and_a_length_that_is_divided(device: torch.device, table: Tables) -> None:
    """Three tiles of the same adapter, and memory for more ranks than there are."""
    adapters, length = table(2100, torch.float32), 2100
    numbers = torch.tensor([1] * 20 + [-1, 3, 0] + [1] * 15, device=device)
    x, output = (torch.randn(len(numbers), size, device=device) for size in (length, NUM_COLUMNS))
    expected = output.double()
    for row, number in enumerate(numbers.tolist()):
        weights = adapters.entries[number] if number >= 0 else None
        if weights is not None:
            expected[row] = expected_row(output[row], x[row], weights)
    rows = AdapterRows(numbers, room=100)
    assert_close(add_adapters(output.clone(), x, rows, adapters), expected)
    again = add_adapters(output.clone(), x, rows, adapters)
    alone = add_adapters(output[37:].clone(), x[37:], rows[37:], adapters)
    assert torch.equal(alone, again[37:])


def test_no_rows(device: torch.device, table: Tables) -> None:
    adapters = table(64, torch.float32)
    output = torch.empty(0, NUM_COLUMNS, device=device)
    numbers = torch.empty(0, dtype=torch.int64, device=device)
    assert add_adapters(output, torch.empty(0, 64, device=device), AdapterRows(numbers), adapters).shape == (
        0,
        NUM_COLUMNS,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [63, 200])
def test_each_token_gets_the_embedding_of_its_adapter(
    dim: int, dtype: torch.dtype, device: torch.device, reach: Callable[[torch.Tensor], None]
) -> None:
    # Tokens 10 to 19 are in the tables; the second adapter has rows of its own for three, the third adds to all.
    some = torch.full((10,), -1, dtype=torch.int32, device=device)
    some[[0, 4, 9]] = torch.tensor([2, 0, 1], dtype=torch.int32, device=device)
    own = EmbeddingWeights(torch.randn(3, dim, device=device).to(dtype), some)
    rows, up = torch.randn(10, 5, device=device).to(dtype), torch.randn(5, dim, device=device).to(dtype)
    added = EmbeddingWeights(rows, torch.arange(10, dtype=torch.int32, device=device), up)
    for tensor in (*own[:2], *added):
        assert tensor is not None
        reach(tensor)
    table = EmbeddingTable(3, device)
    table.place(1, own)
    table.place(2, added)
    ids = torch.tensor([10, 14, 19, 11, 9, 20, 12, 19, 0, 13, 10], device=device)
    numbers = torch.tensor([1, 1, 1, 1, 1, 1, 2, 2, 2, 0, -1], device=device)
    output = torch.randn(len(ids), dim, device=device).to(dtype)
    expected = output.clone()
    expected[:3] = own.rows[[2, 0, 1]]
    for at, token in ((6, 2), (7, 9)):
        expected[at] = (output[at].double() + rows[token].double() @ up.double()).to(dtype)
    assert adapt_embedding(output, ids, AdapterRows(numbers), table, 10) is output
    assert_close(output, expected.double())
    for at in (0, 1, 2, 3, 4, 5, 8, 9, 10):
        assert torch.equal(output[at], expected[at])
    table.place(1, None)
    again = expected.clone()
    adapt_embedding(again[:3], ids[:3], AdapterRows(numbers[:3]), table, 10)
    assert torch.equal(again, expected)
