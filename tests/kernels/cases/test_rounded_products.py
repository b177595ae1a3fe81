"""Products of rows in 8 bits with weights of 8 bits, against the definition of what rows are rounded to."""

from collections.abc import Callable
from itertools import chain

import pytest
import torch
from closeness import DTYPES, assert_close
from kernels.quantized_products import float8_grid, int_groups, signed_groups
from penstock_kernels import ExpertMatrices, Quantized, quantized_grouped_mlp, quantized_linear, silu_mul
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.base.quantized import Rounding, moved, rounding_on_gpu, rounds_inputs
from penstock_kernels.reference.quantized_linear import dequantize, round_inputs

KINDS: dict[str, Callable[[int, int], Quantized]] = {
    "float8 of blocks": lambda rows, columns: float8_grid(rows, columns, 32, 128),
    "float8 of small blocks": lambda rows, columns: float8_grid(rows, columns, 64, 64),
    "float8 of a tensor": lambda rows, columns: float8_grid(rows, columns, rows, columns),
    "float8 of rows": lambda rows, columns: float8_grid(rows, columns, 1, columns),
    "signed rows": lambda rows, columns: signed_groups(rows, columns, columns),
    "int8 in 32": lambda rows, columns: int_groups(rows, columns, 8, 32, False, torch.float16),
    "int8 of rows": lambda rows, columns: int_groups(rows, columns, 8, columns, False, torch.float32),
}


# The kinds that are also tried with experts; ALL_KINDS adds one whose products take rows as they are.
EXPERTS = ("float8 of blocks", "float8 of rows", "int8 in 32")
ALL_KINDS: dict[str, Callable[[int, int], Quantized]] = {
    **KINDS,
    "int4": lambda rows, columns: int_groups(rows, columns, 4, 32, False, torch.float16),
}


def rounding(matrix: Quantized, device: torch.device) -> Rounding:
    found = rounding_on_gpu(moved(matrix, device))
    assert rounds_inputs(found)
    return found


def check(found: torch.Tensor, x: torch.Tensor, weight: Rounding, bias: torch.Tensor | None = None) -> None:
    expected = round_inputs(x, weight).double() @ dequantize(weight).double().T
    assert_close(found, expected if bias is None else expected + bias.double())


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_few_and_of_many_rows(kind: str, device: torch.device) -> None:
    weight = rounding(KINDS[kind](150, 700), device)
    bias = torch.randn(150, device=device).bfloat16()
    for num_rows in (1, 20, 70):
        x = torch.randn(num_rows, 710, device=device).bfloat16()[:, 3:703]
        check(quantized_linear(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_begins_and_ends_within_a_group(
    kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    whole = KINDS[kind](40, 400)
    for start, stop in ((0, 63), (16, 255), (70, 399), (8, 9)):
        weight = rounding(whole.rows(slice(5, 33)).columns(start, stop), device)
        x = torch.randn(2, stop - start, device=device).to(dtype)
        check(quantized_linear(x, weight), x, weight)


def test_parts_side_by_side(device: torch.device) -> None:
    weight = rounding(KINDS["float8 of blocks"](150, 256), device)
    x = torch.randn(5, 256, device=device)
    parts = tuple(weight.rows(rows) for rows in (slice(0, 64), slice(64, 65), slice(100, 147)))
    found = quantized_linear(x, parts)
    for part, its in zip(parts, torch.split(found, [64, 1, 47], dim=1), strict=True):
        check(its, x, part)


@pytest.mark.parametrize("kind", ["float8 of blocks", "signed rows"])
def test_a_row_has_the_same_bits_in_any_batch(kind: str, device: torch.device) -> None:
    weight, x = rounding(KINDS[kind](80, 192), device), torch.randn(70, 192, device=device).bfloat16()
    whole = quantized_linear(x, weight, None, invariant=True)
    for rows in (slice(0, 1), slice(3, 11), slice(60, 70)):
        assert torch.equal(quantized_linear(x[rows], weight, None, invariant=True), whole[rows])


@pytest.mark.parametrize("kind", ["float8 of blocks", "int8 of rows"])
def test_rows_of_no_size_and_of_no_number(kind: str, device: torch.device) -> None:
    """Zeros stay zeros, also where only a scale is too small; infinity and NaN spoil their own row alone."""
    weight, x = rounding(KINDS[kind](40, 256), device), torch.randn(6, 256, device=device)
    x[0] = 0.0
    x[1] = 1e-37
    x[2, 7], x[3, 200] = float("inf"), float("nan")
    x[4] *= 1e30
    found = quantized_linear(x, weight)
    assert not found[0].any()
    assert not found[1].any()
    assert found[2].isnan().all()
    assert found[3].isnan().all()
    check(found[4:], x[4:], weight)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_become_the_numbers_of_the_definition(kind: str, device: torch.device) -> None:
    """To the last bit, at the borders between two numbers, too."""
    if not runs_kernels(device):
        pytest.skip("no kernel rounds here")
    from penstock_kernels.gpu.rounded_rows import rows_for

    weight = rounding(KINDS[kind](8, 300).columns(3, 290), device)
    x = torch.randint(-900, 900, (9, 287), device=device) / 8
    codes, scales = rows_for(x, weight)
    size, first = weight.groups
    begin = first if first + 287 > size else 0
    blocks = (torch.arange(287, device=device) + begin) // weight.input_block
    assert torch.equal(codes.float() * scales[:, blocks], round_inputs(x, weight))


def multiplied(x: torch.Tensor, weight: Quantized) -> torch.Tensor:
    """In float64, of rounded rows where rows are rounded."""
    rows = round_inputs(x, weight) if rounds_inputs(weight) else x
    return rows.double() @ dequantize(weight).double().T


@pytest.mark.parametrize("kinds", [*zip(EXPERTS, EXPERTS, strict=True), ("float8 of blocks", "int8 in 32"),
                                   ("int4", "float8 of rows"), ("float8 of rows", "int4")])  # fmt: skip
def test_experts(kinds: tuple[str, str], device: torch.device, reach: Callable[[torch.Tensor], None]) -> None:
    """One gets most rows, one none. Gates and others may be of two kinds, of which one may not round."""
    gate_up = ExpertMatrices(
        tuple(rounding_on_gpu(moved(ALL_KINDS[kind](70, 96), device)) for kind in kinds) for _ in range(4)
    )
    down = ExpertMatrices(rounding_on_gpu(moved(ALL_KINDS[kinds[0]](96, 70), device)) for _ in range(4))
    for matrix in (*chain(*gate_up), *down):
        for tensor in matrix.tensors.values():
            reach(tensor)
    for count in (1, 21):
        x, weights = torch.randn(count, 96, device=device).bfloat16(), torch.rand(count, 2, device=device)
        chosen = torch.tensor([[0, 3]] * (count - 1) + [[3, 1]], device=device)
        found = quantized_grouped_mlp(x, chosen, weights, gate_up, down, silu_mul)
        expected = torch.zeros(count, 96, dtype=torch.float64, device=device)
        for token in range(count):
            for place in range(2):
                expert, row = int(chosen[token, place]), x[token : token + 1]
                gate, up = (multiplied(row, part).bfloat16().double() for part in gate_up[expert])
                hidden = (gate * gate.sigmoid() * up).bfloat16()
                expected[token] += weights[token, place] * multiplied(hidden, down[expert])[0]
        # Between both products numbers may be rounded to neighbours.
        assert_close(found, expected, 8)
