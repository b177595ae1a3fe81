"""Products with weights of few bits, against the definition of their numbers."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from closeness import DTYPES, assert_close
from penstock_kernels import (
    ExpertMatrices,
    ExpertPart,
    Float8Grid,
    IntGroups,
    Quantized,
    TableBlocks,
    captures_experts,
    quantized_grouped_mlp,
    quantized_linear,
    silu_mul,
    table,
)
from penstock_kernels.base.bit_stream import pack
from penstock_kernels.base.devices import runs_kernels
from penstock_kernels.base.quantized import moved
from penstock_kernels.reference.quantized_linear import dequantize

F8, POWERS = torch.float8_e4m3fn, torch.float8_e8m0fnu


def _integers(rows: int, columns: int, bits: int, group: int, zeros: bool) -> IntGroups:
    codes = pack(torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8), bits)
    shape = rows, -(-columns // group)
    points = torch.randint(0, 1 << bits, shape, dtype=torch.uint8) if zeros else None
    return IntGroups(codes, (torch.rand(shape) / 50).half(), points, columns, bits, group)


def _with_offsets(matrix: IntGroups) -> IntGroups:
    offsets = torch.randn(matrix.scales.shape) / 10
    return replace(matrix, scales=matrix.scales.float(), offsets=offsets)


def _signed(rows: int, columns: int) -> IntGroups:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    return IntGroups(codes, torch.rand(rows, 1) / 500, None, columns, 8, columns)


def _grid(rows: int, columns: int, block_rows: int, block: int) -> Float8Grid:
    codes = torch.randn(rows, columns).to(F8)
    return Float8Grid(codes, torch.rand(-(-rows // block_rows), -(-columns // block)), block_rows, block)


def _table(rows: int, columns: int, block: int, dtype: torch.dtype, low_first: bool) -> TableBlocks:
    codes = torch.randint(0, 256, (rows, (columns + 1) // 2), dtype=torch.uint8)
    scales = torch.randint(-3, 3, (rows, -(-columns // block))).float().exp2().to(dtype)
    tensor_scale = torch.rand(1) if dtype == F8 else None
    return TableBlocks(codes, torch.randn(16), scales, columns, block, 0, tensor_scale, low_first)


KINDS: dict[str, Callable[[int, int], Quantized]] = {
    "int4": lambda rows, columns: _integers(rows, columns, 4, 128, False),
    "int4 with zeros": lambda rows, columns: _integers(rows, columns, 4, 32, True),
    "int8": lambda rows, columns: _integers(rows, columns, 8, 64, True),
    "signed": _signed,
    "int4 with offsets": lambda rows, columns: _with_offsets(_integers(rows, columns, 4, 32, False)),
    "int8 with offsets": lambda rows, columns: _with_offsets(_integers(rows, columns, 8, 16, False)),
    "float8 of blocks": lambda rows, columns: _grid(rows, columns, 32, 128),
    "float8 of a tensor": lambda rows, columns: _grid(rows, columns, rows, columns),
    "nf4": lambda rows, columns: _table(rows, columns, 64, torch.float32, False),
    "mxfp4": lambda rows, columns: _table(rows, columns, 32, POWERS, True),
    "nvfp4": lambda rows, columns: _table(rows, columns, 16, F8, True),
}


def _check(x: torch.Tensor, weight: Quantized, bias: torch.Tensor | None, invariant: bool = False) -> None:
    here = moved(weight, x.device)
    numbers = dequantize(here, x.dtype).double()
    expected = x.double() @ numbers.T + (0 if bias is None else bias.double())
    assert_close(quantized_linear(x, here, bias, invariant), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_of_few_rows(kind: str, device: torch.device) -> None:
    """Its length is divided: more programs than one add to a sum."""
    weight, x = KINDS[kind](70, 1100), torch.randn(3, 1100, device=device).bfloat16()
    _check(x, weight, torch.randn(70, device=device).bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_of_many_rows(kind: str, device: torch.device) -> None:
    weight = KINDS[kind](150, 320)
    for num_rows in (20, 130):
        _check(torch.randn(num_rows, 320, device=device).bfloat16(), weight, None)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_begins_and_ends_within_a_group(
    kind: str, dtype: torch.dtype, device: torch.device
) -> None:
    whole = KINDS[kind](40, 400)
    for start, stop in ((0, 63), (16, 255), (70, 399), (3, 200), (8, 9)):
        weight = whole.rows(slice(5, 33)).columns(start, stop)
        _check(torch.randn(2, stop - start, device=device).to(dtype), weight, None)


def test_parts_and_rows_that_lie_apart(device: torch.device) -> None:
    weight = moved(KINDS["int4 with zeros"](150, 256), device)
    x, bias = (
        torch.randn(5, 300, device=device).bfloat16()[:, 10:266],
        torch.randn(80, device=device).bfloat16(),
    )
    parts = tuple(weight.rows(rows) for rows in (slice(0, 64, 2), slice(65, 66), slice(100, 147)))
    numbers = torch.cat([dequantize(part, x.dtype) for part in parts]).double()
    assert_close(quantized_linear(x, parts, bias), x.double() @ numbers.T + bias.double())


@pytest.mark.parametrize("kind", ["int4", "mxfp4", "float8 of blocks"])
def test_a_row_has_the_same_bits_in_any_batch(kind: str, device: torch.device) -> None:
    weight, x = moved(KINDS[kind](80, 192), device), torch.randn(70, 192, device=device).bfloat16()
    whole = quantized_linear(x, weight, None, invariant=True)
    for rows in (slice(0, 1), slice(3, 11), slice(60, 70)):
        assert torch.equal(quantized_linear(x[rows], weight, None, invariant=True), whole[rows])


def test_what_does_not_fit_into_tiles_is_computed_by_the_reference(device: torch.device) -> None:
    x = torch.randn(3, 90, device=device)
    for weight in (_integers(7, 90, 3, 32, True), _integers(7, 90, 4, 30, False)):
        _check(x, weight, None)


def test_all_floats_of_8_bits_mean_what_they_are(device: torch.device) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device)[:, None].repeat(1, 32).view(F8)
    x = torch.zeros(1, 32, device=device)
    x[0, 3] = 1.0
    found = quantized_linear(x, Float8Grid(codes, torch.ones(1, 1, device=device), 256, 32))
    expected = codes[:, 3].float()
    torch.testing.assert_close(found[0], expected, rtol=0.0, atol=0.0, equal_nan=True)


def test_all_columns_may_share_zeros_and_scales(device: torch.device) -> None:
    """Views whose rows are the same memory, as a format with one zero a matrix makes them."""
    codes = torch.randint(-128, 128, (40, 96), dtype=torch.int8, device=device)
    scales = torch.full((1, 1), 0.01, device=device).expand(40, 1)
    zeros = torch.full((1, 1), 17, dtype=torch.int8, device=device).expand(40, 1)
    weight, x = IntGroups(codes, scales, zeros, 96, 8, 96), torch.randn(3, 96, device=device)
    assert_close(quantized_linear(x, weight), x @ ((codes.float() - 17) * 0.01).T)


class Experts:
    """Four of one kind, whose gate and up projection lie apart; 70 numbers between both products, of 96 inputs."""

    def __init__(self, kind: str, device: torch.device, dtype: torch.dtype) -> None:
        make = KINDS[kind]
        self.gate_up = ExpertMatrices(
            (moved(make(70, 96), device), moved(make(70, 96), device)) for _ in range(4)
        )
        self.down = ExpertMatrices(moved(make(96, 70), device) for _ in range(4))
        self.biases = (
            torch.randn(4, 140, device=device).to(dtype),
            torch.randn(4, 96, device=device).to(dtype),
        )

    def compute(
        self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, **options: Any
    ) -> torch.Tensor:
        return quantized_grouped_mlp(
            x, chosen, weights, self.gate_up, self.down, silu_mul, *self.biases, **options
        )

    def expected(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for token, place in itertools.product(range(len(x)), range(chosen.shape[1])):
            expert = int(chosen[token, place])
            numbers = torch.cat([dequantize(part, x.dtype) for part in self.gate_up[expert]]).double()
            gate, up = (numbers @ x[token].double() + self.biases[0][expert]).to(x.dtype).double().chunk(2)
            hidden = (gate * gate.sigmoid() * up).to(x.dtype).double()
            found = dequantize(self.down[expert], x.dtype).double() @ hidden + self.biases[1][expert]
            total[token] += weights[token, place] * found
        return total


Make = Callable[[str, torch.dtype], Experts]


@pytest.fixture
def make(device: torch.device, reach: Callable[[torch.Tensor], None]) -> Make:
    def made(kind: str, dtype: torch.dtype) -> Experts:
        experts = Experts(kind, device, dtype)
        for matrix in (*itertools.chain(*experts.gate_up), *experts.down):
            for tensor in matrix.tensors.values():
                reach(tensor)
        return experts

    return made


@pytest.mark.parametrize("kind", KINDS)
def test_experts(kind: str, make: Make, device: torch.device) -> None:
    """One gets most rows, one none; with some kinds as many rows each as need tiles of many."""
    experts = make(kind, torch.bfloat16)
    assert captures_experts(device, experts.gate_up, experts.down)
    for count in (1, 80 if kind in ("int4 with zeros", "float8 of blocks", "mxfp4") else 21):
        x, weights = torch.randn(count, 96, device=device).bfloat16(), torch.rand(count, 2, device=device)
        chosen = torch.tensor([[0, 3]] * (count - 1) + [[3, 1]], device=device)
        assert_close(experts.compute(x, chosen, weights), experts.expected(x, chosen, weights), 8)


def test_experts_of_a_rank_and_in_any_batch(make: Make, device: torch.device) -> None:
    experts = make("mxfp4", torch.bfloat16)
    x, weights = torch.randn(6, 96, device=device).bfloat16(), torch.rand(6, 2, device=device)
    chosen = torch.tensor([[0, 3], [1, 2], [2, 0], [3, 0], [1, 0], [2, 3]], device=device)
    whole = experts.compute(x, chosen, weights, invariant=True)
    assert_close(whole, experts.expected(x, chosen, weights), 8)
    for row in (0, 5):
        alone = experts.compute(*(given[row : row + 1] for given in (x, chosen, weights)), invariant=True)
        assert torch.equal(alone[0], whole[row])
    shares = []
    for here in (slice(0, 1), slice(1, 4)):
        gate_up, down = ExpertMatrices(experts.gate_up[here]), ExpertMatrices(experts.down[here])
        up_bias, down_bias = (bias[here] for bias in experts.biases)
        rest = silu_mul, up_bias, down_bias, False, ExpertPart(here.start, 4)
        shares.append(quantized_grouped_mlp(x, chosen, weights, gate_up, down, *rest))
    assert_close(shares[0] + shares[1], whole.double(), 8)


def test_experts_that_do_not_lie_alike_are_computed_by_the_reference(
    make: Make, device: torch.device
) -> None:
    """One is of another kind, or begins within a byte."""
    for other in (KINDS["int8"](96, 70), KINDS["mxfp4"](96, 71).columns(1, 71)):
        experts = make("mxfp4", torch.float32)
        experts.down = ExpertMatrices((*experts.down[:3], moved(other, device)))
        row = table.quantized_grouped_mlp
        assert not runs_kernels(device) or not row.gpu_if(
            experts.down[0], None, None, experts.gate_up, experts.down
        )
        x, weights = torch.randn(3, 96, device=device), torch.rand(3, 2, device=device)
        chosen = torch.tensor([[0, 3], [1, 2], [3, 0]], device=device)
        assert_close(experts.compute(x, chosen, weights), experts.expected(x, chosen, weights), 8)
