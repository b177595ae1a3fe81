"""Products with rounded rows in C, what is not so with rows of floats: the same bits on every width of vectors."""

import itertools
from dataclasses import replace

import pytest
import torch
from kernels.quantized_products import PARTS, check, rounding
from kernels.quantized_products import ROUNDING_KINDS as KINDS
from penstock_kernels import quantized_grouped_mlp, quantized_linear, silu_mul
from penstock_kernels.base.quantized import LARGEST_INPUT, input_blocks
from penstock_kernels.native import quantized as native
from penstock_kernels.reference.quantized_linear import round_inputs


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_width_of_vectors_gives_the_same_bits(kind: str) -> None:
    whole = KINDS[kind](37, 5000)
    for start, stop in [*PARTS, (0, 5000), (33, 4999)]:
        weight, x = whole.columns(start, stop), torch.randn(11, stop - start)
        found = native.multiply(x, (weight,), None, 4)
        check(found, x, weight)
        for lanes in (8, 16, 0):
            for num_rows in (1, 3, 11):
                again = native.multiply(x[:num_rows], (weight,), None, lanes)
                assert torch.equal(again, found[:num_rows]), (start, stop, lanes, num_rows)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("kind", ["int4", "int8", "signed"])
def test_many_rows_are_as_a_few(kind: str, bits: int) -> None:
    """More than are kept for a tile, in 16 bits, with a bias."""
    weight, bias = KINDS[f"{kind}, rows of int{bits}"](41, 96), torch.randn(41).bfloat16()
    x = torch.randn(137, 96).bfloat16()
    found = native.multiply(x, (weight,), bias)
    check(found, x, weight, bias)
    for first in range(0, 137, 10):
        few = native.multiply(x[first : first + 10], (weight,), bias)
        assert torch.equal(few, found[first : first + 10])


@pytest.mark.parametrize("kind", KINDS)
def test_codes_at_the_ends_of_their_range_do_not_overflow(kind: str) -> None:
    weight = KINDS[kind](4, 320)
    x = torch.ones(3, 320)
    x[1] = -1
    x[2, ::2] = -1
    for byte in (0, 255, 127, 128):
        codes = torch.full_like(weight.codes.view(torch.uint8), byte).view(weight.codes.dtype)
        full = replace(weight, codes=codes)
        for lanes, num_rows in itertools.product((4, 8, 16), (1, 3)):
            check(native.multiply(x[-num_rows:], (full,), None, lanes), x[-num_rows:], full)


def test_two_digits_are_nearly_exact() -> None:
    """Sixteen bits of the largest number of a block: less is lost than where a result becomes bfloat16."""
    weight, x = KINDS["int4 in 64, rows of int16"](64, 1000), torch.randn(8, 1000)
    exact = native.multiply(x, (rounding(weight, 0),), None)
    lost = (native.multiply(x, (weight,), None) - exact).abs().amax() / exact.abs().amax()
    assert 0 < lost < 2**-13
    coarse = (native.multiply(x, (rounding(weight, 8),), None) - exact).abs().amax() / exact.abs().amax()
    assert lost < coarse / 64


@pytest.mark.parametrize("bits", [8, 16])
def test_the_reference_rounds_block_by_block(bits: int) -> None:
    weight, largest = KINDS[f"int4 in 48, rows of int{bits}"](2, 200).columns(10, 150), LARGEST_INPUT[bits]
    blocks = input_blocks(weight).tolist()
    # Inputs 10 .. 149 of groups of 48, of which each has a block of 32 and one of 16.
    cuts = [10, 32, 48, 80, 96, 128, 144, 150]
    assert [blocks.count(block) for block in sorted(set(blocks))] == [
        end - begin for begin, end in itertools.pairwise(cuts)
    ]
    x = torch.randn(3, 140)
    rounded = round_inputs(x, weight)
    for begin, end in itertools.pairwise(cuts):
        part = slice(begin - 10, end - 10)
        scale = x[:, part].abs().amax(1, keepdim=True) / largest
        whole = rounded[:, part] / scale
        assert torch.equal(rounded[:, part], whole.round() * scale)
        assert whole.abs().amax(1).round().tolist() == [largest] * 3
        assert ((rounded[:, part] - x[:, part]).abs() <= scale * 0.51).all()


@pytest.mark.parametrize("bits", [8, 16])
def test_numbers_that_no_scale_can_hold(bits: int) -> None:
    weight = KINDS[f"int4, rows of int{bits}"](3, 96)
    x = torch.randn(6, 96)
    x[0, 40], x[1, 3], x[2, 95] = float("nan"), float("inf"), -float("inf")
    x[3] = 0
    x[4] = torch.rand(96) * 1e-40
    for lanes in (4, 8, 16):
        found = native.multiply(x, (weight,), None, lanes)
        assert found[:3].isnan().all()
        assert torch.equal(found[3:5], torch.zeros(2, 3))
        assert found[5].isfinite().all()
    assert torch.equal(round_inputs(x, weight)[3:5], torch.zeros(2, 96))
    assert round_inputs(x, weight)[:3].isnan().sum(1).tolist() == [32] * 3


@pytest.mark.parametrize("bits", [8, 16])
def test_where_c_cannot_the_reference_computes(bits: int) -> None:
    weight, x = KINDS[f"int8, rows of int{bits}"](5, 77), torch.randn(3, 77)
    found = quantized_linear(x.half(), weight)
    assert found.dtype == torch.float16
    check(found, x.half(), weight)


def test_groups_out_of_order_are_refused() -> None:
    weight = replace(KINDS["int4, rows of int8"](5, 64), group_of_column=torch.zeros(64, dtype=torch.int32))
    with pytest.raises(ValueError, match="input_bits needs groups in order"):
        quantized_linear(torch.randn(1, 64), weight)


@pytest.mark.parametrize("bits", [8, 16])
def test_experts_take_rounded_rows(bits: int) -> None:
    make, make_down = KINDS[f"int4, rows of int{bits}"], KINDS[f"signed rows, rows of int{bits}"]
    gate_up = tuple((make(24, 64), make(24, 64)) for _ in range(2))
    down = tuple(make_down(64, 24) for _ in range(2))
    x, ids = torch.randn(1, 64), torch.tensor([[1]])
    found = quantized_grouped_mlp(x, ids, torch.ones(1, 1), gate_up, down, silu_mul)
    hidden = silu_mul(quantized_linear(x, gate_up[1]))
    assert torch.equal(found, quantized_linear(hidden, down[1]))
