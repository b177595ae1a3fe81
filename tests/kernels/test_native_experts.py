"""Experts in C: a row has the same bits whatever the others are, for every width of vectors, and steps are recorded."""

import pytest
import torch
from penstock_kernels import Routing, grouped_mlp, reference, route, silu_mul
from penstock_kernels.native.grouped_linear import grouped_linear
from penstock_kernels.native.recording import Arena, record

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("max_lanes", [0, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "length"), [(1, 64), (9, 48), (70, 80)])
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


def test_a_row_of_no_group_is_refused() -> None:
    x, weight = torch.zeros(2, 16), torch.zeros(3, 4, 16)
    for group in (-1, 3):
        with pytest.raises(MemoryError, match="of no group"):
            grouped_linear(x, torch.tensor([0, group]), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_recorded_step_takes_whichever_experts_are_chosen(dtype: torch.dtype) -> None:
    x, logits = torch.randn(4, 48).to(dtype), torch.randn(4, 8)
    correction, routing = torch.randn(8), Routing(True, 4, 2, True, 2.5)
    gate_up, down = torch.randn(8, 2 * 32, 48).to(dtype), torch.randn(8, 48, 32).to(dtype)
    results: list[torch.Tensor] = []

    def compute() -> None:
        weights, chosen = route(logits, 2, True, correction, routing)
        results[:] = [grouped_mlp(x, chosen, weights, gate_up, down, silu_mul), weights, chosen]

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
            assert torch.equal(
                found[one], grouped_mlp(x[one], chosen[one], weights[one], gate_up, down, silu_mul)
            )
        expected = reference.grouped_mlp(x, chosen, weights, gate_up, down, silu_mul)
        rtol, atol = (3e-2, 0.5) if dtype != torch.float32 else (1e-4, 1e-3)
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
