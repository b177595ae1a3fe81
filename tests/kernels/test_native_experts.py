"""Experts in C: a row has the same bits whatever the others are, for every width of vectors, and steps are recorded."""

import pytest
import torch
from penstock_kernels import ExpertPart, Routing, grouped_mlp, reference, route, silu_mul
from penstock_kernels.native.grouped_linear import grouped_linear
from penstock_kernels.native.recording import Arena, record

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.usefixtures("has_amx")
@pytest.mark.parametrize("max_lanes", [0, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "length"), [(1, 64), (9, 48), (70, 80), (70, 96)])
def test_rows_are_multiplied_by_the_matrix_of_their_group(
    num_rows: int, length: int, dtype: torch.dtype, max_lanes: int
) -> None:
    x = torch.randn(num_rows, length + 3).to(dtype)[:, :length]
    weight, bias = torch.randn(5, 37, length).to(dtype), torch.randn(5, 37).to(dtype)
    groups = torch.randint(5, (3 * num_rows,))
    found = grouped_linear(x, groups, weight, bias, max_lanes)
    rows = x.double().repeat_interleave(3, 0)
    expected = torch.einsum("rl,rcl->rc", rows, weight.double()[groups]) + bias.double()[groups]
    torch.testing.assert_close(
        found.double(), expected, rtol=1e-2, atol=0.1 if dtype != torch.float32 else 1e-4
    )
    alone = grouped_linear(x[-1:], groups[-3:], weight, bias, max_lanes)
    assert torch.equal(alone, found[-3:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 40])
def test_rows_without_groups_are_of_all_in_turn(num_tokens: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(3 * num_tokens, 64).to(dtype), torch.randn(3, 37, 64).to(dtype)
    assert torch.equal(
        grouped_linear(x, None, weight), grouped_linear(x, torch.arange(3).repeat(num_tokens), weight)
    )


def test_a_row_of_no_group_is_refused() -> None:
    x, weight = torch.zeros(2, 16), torch.zeros(3, 4, 16)
    for group in (-1, 3):
        with pytest.raises(MemoryError, match="of no group"):
            grouped_linear(x, torch.tensor([0, group]), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_a_group_that_is_elsewhere_becomes_zeros(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 16).to(dtype), torch.randn(6, 4, 16).to(dtype)
    groups, part = torch.tensor([5, 0, 3, 2, 3, 1]), ExpertPart(2, 6)
    output = torch.full((6, 7), 9.0, dtype=dtype)
    found = grouped_linear(x, groups, weight[2:4].contiguous(), part=part, output=output[:, :4])
    whole = grouped_linear(x, groups, weight)
    assert torch.equal(found, torch.where(((groups == 2) | (groups == 3))[:, None], whole, 0.0))
    assert output[:, 4:].eq(9.0).all()
    assert grouped_linear(x, groups, weight[:0], part=part).eq(0.0).all()
    for group in (-1, 6):
        with pytest.raises(MemoryError, match="of no group"):
            grouped_linear(x[:1], torch.tensor([group]), weight[2:4].contiguous(), part=part)


@pytest.mark.parametrize("part", [None, ExpertPart(3, 8), ExpertPart(8, 8)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_step_takes_whichever_experts_are_chosen(
    dtype: torch.dtype, part: ExpertPart | None
) -> None:
    x, logits = torch.randn(4, 48).to(dtype), torch.randn(4, 8)
    correction, routing = torch.randn(8), Routing(True, 4, 2, True, 2.5)
    count = 8 if part is None else min(2, part.total - part.first)
    gate_up, down = torch.randn(count, 2 * 32, 48).to(dtype), torch.randn(count, 48, 32).to(dtype)
    rest = gate_up, down, silu_mul, None, None, False, part
    results: list[torch.Tensor] = []

    def compute() -> None:
        weights, chosen = route(logits, 2, True, correction, routing)
        results[:] = [grouped_mlp(x, chosen, weights, *rest), weights, chosen]

    recording = record(compute, Arena())
    for _ in range(3):
        logits.normal_()
        x.normal_()
        recording.replay()
        found, weights, chosen = (result.clone() for result in results)
        wanted, ids = reference.route(logits, 2, True, correction, routing)
        assert torch.equal(chosen, ids)
        torch.testing.assert_close(weights, wanted)
        for row in range(4):
            one = slice(row, row + 1)
            assert torch.equal(found[one], grouped_mlp(x[one], chosen[one], weights[one], *rest))
        expected = reference.grouped_mlp(x, chosen, weights, *rest)
        rtol, atol = (3e-2, 0.5) if dtype != torch.float32 else (1e-4, 1e-3)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
