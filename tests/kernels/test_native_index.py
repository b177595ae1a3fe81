"""The choice of an index in C, in every width of vectors, against its reference on whole numbers."""

import pytest
import torch
from penstock_kernels import reference
from penstock_kernels.base.seen_rows import SeenRows
from penstock_kernels.native import choose_positions as native

BLOCK = 8


def _given(heads: int, dim: int, lens: list[int]) -> tuple[torch.Tensor, ...]:
    """Queries, their weights, keys, tables of two spans, and what each query sees of the first or the second."""
    query = torch.randint(-2, 3, (len(lens), heads, dim)).float()
    weights = torch.randint(-2, 3, (len(lens), heads)) * float(dim) ** 0.5
    num_blocks = -(-max(lens) // BLOCK)
    cache = torch.randint(-2, 3, (2 * num_blocks, BLOCK, 1, dim)).float()
    tables = torch.randperm(2 * num_blocks, dtype=torch.int32).view(2, num_blocks)
    return query, weights, cache, tables


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "dim"), [(1, 1), (4, 64), (7, 16), (9, 1024)])
def test_the_best_positions_equal_those_of_the_reference(
    lanes: int, dtype: torch.dtype, heads: int, dim: int
) -> None:
    torch.manual_seed(0)
    # More rows and positions than a piece of work has, of both spans in turn.
    lens = [700, 699, 3, 0, 128, 129, *range(400, 430)]
    query, weights, cache, tables = _given(heads, dim, lens)
    spans = torch.tensor([0, 0, 1, 1, 0, 1, *[1] * 30], dtype=torch.int32)
    seen = SeenRows(spans, torch.tensor(lens, dtype=torch.int32))
    for top_k in (5, 128):
        both = [torch.full((len(lens), top_k), -1, dtype=torch.int32) for _ in range(2)]
        given = query.to(dtype), weights, cache.to(dtype), tables, seen, 700
        native.choose_positions(*given, both[0], lanes)
        reference.choose_positions(*given, both[1])
        for length, found, expected in zip(lens, *both, strict=True):
            count = min(length, top_k)
            assert torch.equal(found[:count], expected[:count])
            assert (found[count:] == -1).all()


def test_a_row_is_scored_alike_whatever_is_beside_it() -> None:
    torch.manual_seed(0)
    lens = [500] * 40
    _, _, cache, tables = _given(8, 64, lens)
    query, weights, cache = torch.randn(40, 8, 64), torch.randn(40, 8), torch.randn_like(cache)
    spans = torch.arange(40, dtype=torch.int32) % 2
    together = torch.empty(40, 9, dtype=torch.int32)
    seen = SeenRows(spans, torch.tensor(lens, dtype=torch.int32))
    native.choose_positions(query, weights, cache, tables, seen, 500, together)
    for row in (0, 17, 39):
        alone, part = torch.empty(1, 9, dtype=torch.int32), slice(row, row + 1)
        native.choose_positions(query[part], weights[part], cache, tables, seen.part(part), 640, alone)
        assert torch.equal(alone[0], together[row])
