"""Products with weights of few bits in C: every kind of code and width of vectors, and the same bits in any company."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from kernels.quantized_products import ALL, F8, KINDS, PARTS, POWERS, check, int_groups
from penstock_kernels import (
    Float8Grid,
    IntGroups,
    Quantized,
    TableBlocks,
    quantized_grouped_mlp,
    quantized_linear,
    silu_mul,
)
from penstock_kernels.native import quantized as native
from penstock_kernels.native.recording import Arena, record

# A kind of each way through the code that is not that of one kind.
IN_C = ("int4 with zeros", "int4, rows of int8")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_width_of_vectors_equals_the_definition(kind: str, lanes: int) -> None:
    whole = KINDS[kind](37, 1000)
    for start, stop in PARTS:
        weight = whole.columns(start, stop)
        x = torch.randn(9, stop - start)
        for num_rows in (1, 9):
            check(native.multiply(x[:num_rows], (weight,), None, lanes), x[:num_rows], weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ALL)
def test_a_row_has_the_same_bits_in_any_batch(kind: str, dtype: torch.dtype) -> None:
    for start, stop in PARTS:
        weight = ALL[kind](70, 1000).rows(slice(1, 70)).columns(start, stop)
        x, bias = torch.randn(150, stop - start).to(dtype), torch.randn(69).to(dtype)
        whole = quantized_linear(x, weight, bias, invariant=True)
        check(whole, x, weight, bias)
        for begin, end in ((0, 1), (5, 7), (7, 10), (6, 10), (3, 12), (60, 131)):
            again = quantized_linear(x[begin:end], weight, bias, invariant=True)
            assert torch.equal(again, whole[begin:end])


@pytest.mark.parametrize("kind", ALL)
def test_many_rows_are_multiplied_in_tiles(kind: str, poison_memory: Callable[[], None]) -> None:
    whole_weight = ALL[kind](70, 1000).rows(slice(1, 70))
    weights = [whole_weight.columns(start, stop) for start, stop in PARTS]
    poison_memory()
    for weight in weights:
        x, bias = torch.randn(301, weight.in_features).bfloat16(), torch.randn(69).bfloat16()
        whole = native.multiply(x, (weight,), bias, is_tiled=True)
        check(whole, x, weight, bias)
        for begin, end in ((0, 8), (5, 22), (40, 110), (7, 300)):
            assert torch.equal(
                native.multiply(x[begin:end], (weight,), bias, is_tiled=True), whole[begin:end]
            )
        cuts = [slice(0, 5), slice(5, 22), slice(22, 69)]
        parts = tuple(weight.rows(cut) for cut in cuts)
        check(native.multiply(x[:50], parts, bias, is_tiled=True), x[:50], weight, bias)


def test_few_rows_and_invariant_ones_are_in_no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = ALL["signed"](40, 256), torch.randn(40, 256).bfloat16()
    found = (
        quantized_linear(x, weight),
        quantized_linear(x[:7], weight),
        quantized_linear(x, weight, invariant=True),
    )
    monkeypatch.setattr("penstock_kernels.native.linear.has_amx", lambda: False)
    expected = quantized_linear(x, weight)
    torch.testing.assert_close(found[0], expected, atol=0.1, rtol=2e-2)
    assert torch.equal(found[1], expected[:7])
    assert torch.equal(found[2], expected)


def test_a_group_of_its_own_for_every_input() -> None:
    weight = int_groups(9, 70, 4, 16, True, torch.float16)
    weight = replace(weight, group_of_column=torch.randint(0, 5, (70,), dtype=torch.int32))
    x = torch.randn(3, 70)
    check(quantized_linear(x, weight), x, weight)


def test_all_floats_of_8_bits_mean_what_they_are() -> None:
    codes = torch.arange(256, dtype=torch.uint8)[:, None].repeat(1, 16)
    weight = Float8Grid(codes.view(F8), torch.tensor([[3.0]]), 256, 16)
    x = torch.zeros(1, 16)
    x[0, 3] = 1.0
    expected = codes[:, 0].view(F8).float() * 3
    for lanes in (4, 8, 16):
        found = native.multiply(x, (weight,), None, lanes)[0]
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0, equal_nan=True)


def test_all_scales_mean_what_they_are() -> None:
    x = torch.eye(16)[:1]
    for dtype, bits in ((torch.float16, 16), (torch.bfloat16, 16), (F8, 8), (POWERS, 8)):
        words = torch.arange(1 << bits, dtype=torch.int32)
        scales = (words.short().view(dtype) if bits == 16 else words.to(torch.uint8).view(dtype))[:, None]
        codes = torch.full((len(scales), 8), 0x99, dtype=torch.uint8)
        weight: Quantized = (
            IntGroups(codes, scales, None, 16, 4, 16)
            if bits == 16
            else TableBlocks(codes, torch.ones(16), scales, 16, 16)
        )
        found = native.multiply(x, (weight,), None)[0]
        expected = scales[:, 0].float()
        # Codes of a few units times larger ones would be infinite.
        is_usual = ~(expected.abs() > 1e37)
        torch.testing.assert_close(found[is_usual], expected[is_usual], rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("kind", IN_C)
def test_no_inputs_give_the_bias_and_no_rows_give_none(kind: str) -> None:
    weight, bias = ALL[kind](3, 32), torch.randn(3)
    assert torch.equal(quantized_linear(torch.randn(2, 0), weight.columns(0, 0), bias), bias.repeat(2, 1))
    assert quantized_linear(torch.randn(0, 32), weight).shape == (0, 3)
    assert quantized_linear(torch.randn(2, 32), weight.rows(slice(0, 0))).shape == (2, 0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("kind", IN_C)
def test_parts_multiply_like_one_on_any_threads(
    kind: str, threads: int, set_threads: Callable[[int], None]
) -> None:
    weight = ALL[kind](2401, 128)
    x, bias = torch.randn(5, 128), torch.randn(2401)
    expected = native.multiply(x, (weight,), bias)
    cuts = [0, 1, 32, 65, 2401]
    parts = tuple(weight.rows(slice(*cut)) for cut in itertools.pairwise(cuts))
    set_threads(threads)
    assert torch.equal(quantized_linear(x, parts, bias), expected)


@pytest.mark.parametrize("kind", ALL)
def test_nothing_is_read_that_was_not_written(kind: str, poison_memory: Callable[[], None]) -> None:
    weight, x = ALL[kind](5, 77), torch.randn(3, 77)
    poison_memory()
    check(native.multiply(x, (weight,), None), x, weight)


@pytest.mark.parametrize("kind", ["nvfp4", "int3, rows of int8"])
def test_a_recorded_step_computes_again(kind: str) -> None:
    weight = ALL[kind](33, 70)
    x, found = torch.randn(2, 70), torch.empty(2, 33)
    recording = record(lambda: found.copy_(quantized_linear(x, weight)), Arena())
    x.copy_(torch.randn(2, 70))
    recording.replay()
    assert torch.equal(found, quantized_linear(x, weight))


def test_experts_are_products_in_c() -> None:
    gate_up = tuple((KINDS["int4"](24, 64), KINDS["int4"](24, 64)) for _ in range(3))
    down = tuple(KINDS["fp8 of rows"](64, 24) for _ in range(3))
    x, ids, weights = torch.randn(7, 64), torch.randint(0, 3, (7, 2)), torch.rand(7, 2)
    found = quantized_grouped_mlp(x, ids, weights, gate_up, down, silu_mul, invariant=True)
    for token in range(7):
        expected = torch.zeros(64)
        for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
            hidden = silu_mul(quantized_linear(x[token : token + 1], gate_up[expert]))
            expected += weight * quantized_linear(hidden, down[expert])[0]
        torch.testing.assert_close(found[token], expected)
        one = slice(token, token + 1)
        again = quantized_grouped_mlp(x[one], ids[one], weights[one], gate_up, down, silu_mul, invariant=True)
        assert torch.equal(again[0], found[token])


_AT_THE_END_OF_MEMORY = """
import ctypes, mmap, torch
from penstock_kernels import IntGroups, quantized_linear
pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
for bits in (4, 8, 3):
    for columns in (77, 1, 16, 33):
        size = 3 * -(-columns * bits // 8)
        codes = torch.frombuffer(pages, dtype=torch.uint8, count=size, offset=mmap.PAGESIZE - size).view(3, -1)
        for input_bits in (0, 8, 16):
            weight = IntGroups(codes, torch.ones(3, 1), None, columns, bits, columns, input_bits=input_bits)
            for rows in (1, 5):
                assert quantized_linear(torch.ones(rows, columns), weight).isfinite().all()
"""


def test_nothing_is_read_behind_the_last_code() -> None:
    subprocess.run([sys.executable, "-c", _AT_THE_END_OF_MEMORY], check=True, timeout=100)
