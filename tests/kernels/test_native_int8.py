"""Products with rows of int8 in C: every kind of code as the reference; the same bits on every width of vectors."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from penstock_kernels import IntGroups, quantized_grouped_mlp, quantized_linear, silu_mul
from penstock_kernels.base.bit_stream import pack
from penstock_kernels.base.quantized import input_blocks
from penstock_kernels.native import quantized as native
from penstock_kernels.native.recording import Arena, record
from penstock_kernels.reference.quantized_linear import dequantize, round_to_int8


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _groups(bits: int, group: int, zeros: bool, dtype: torch.dtype) -> Callable[[int, int], IntGroups]:
    def make(rows: int, columns: int) -> IntGroups:
        size = group or columns
        codes = pack(torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8), bits)
        shape = rows, -(-columns // size)
        points = torch.randint(0, 1 << bits, shape, dtype=torch.uint8) if zeros else None
        scales = torch.randn(shape).to(dtype)
        return IntGroups(codes, scales, points, columns, bits, size, int8_inputs=True)

    return make


def _signed(group: int, zeros: bool) -> Callable[[int, int], IntGroups]:
    def make(rows: int, columns: int) -> IntGroups:
        codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
        shape = rows, -(-columns // (group or columns))
        points = torch.randint(-128, 128, shape, dtype=torch.int8) if zeros else None
        return IntGroups(codes, torch.rand(shape), points, columns, 8, group or columns, int8_inputs=True)

    return make


KINDS: dict[str, Callable[[int, int], IntGroups]] = {
    "int4": _groups(4, 32, False, torch.float16),
    "int4 with zeros": _groups(4, 128, True, torch.bfloat16),
    "int4 in 64": _groups(4, 64, True, torch.float32),
    "int4 in 48": _groups(4, 48, False, torch.float16),
    "int4 in 16": _groups(4, 16, True, torch.float16),
    "int4 of rows": _groups(4, 0, True, torch.float32),
    "int8": _groups(8, 32, True, torch.float32),
    "int8 in 128": _groups(8, 128, False, torch.bfloat16),
    "signed": _signed(64, True),
    "signed rows": _signed(0, False),
    "signed in 16": _signed(16, True),
    "int2": _groups(2, 16, True, torch.float16),
    "int3": _groups(3, 32, True, torch.float16),
    "int5": _groups(5, 20, False, torch.float32),
    "int7": _groups(7, 64, True, torch.float16),
}
# Of columns: whole groups, and what begins and ends within one; odd sizes.
PARTS = [
    (0, 256),
    (0, 1000),
    (64, 1000),
    (16, 255),
    (8, 88),
    (2, 65),
    (13, 93),
    (7, 8),
    (0, 5000),
    (33, 4999),
]


def _check(found: torch.Tensor, x: torch.Tensor, weight: IntGroups, bias: torch.Tensor | None = None) -> None:
    """Against float64 sums of what the reference rounds."""
    numbers, rounded = dequantize(weight).double(), round_to_int8(x, weight).double()
    expected, largest = rounded @ numbers.T, rounded.abs() @ numbers.abs().T
    if bias is not None:
        expected, largest = expected + bias.double(), largest + bias.double().abs()
    assert ((found.double() - expected).abs() <= largest * torch.finfo(found.dtype).eps * 8).all()


@pytest.mark.parametrize("kind", KINDS)
def test_every_width_of_vectors_gives_the_same_bits(kind: str) -> None:
    whole = KINDS[kind](9, 5000)
    for start, stop in PARTS:
        weight, x = whole.columns(start, stop), torch.randn(5, stop - start)
        found = native.multiply(x, (weight,), None, 4)
        _check(found, x, weight)
        for lanes in (8, 16, 0):
            for num_rows in (1, 5):
                again = native.multiply(x[:num_rows], (weight,), None, lanes)
                assert torch.equal(again, found[:num_rows]), (start, stop, lanes, num_rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch(kind: str, dtype: torch.dtype) -> None:
    for start, stop in PARTS[:7]:
        weight = KINDS[kind](70, 1000).rows(slice(1, 70)).columns(start, stop)
        x, bias = torch.randn(150, stop - start).to(dtype), torch.randn(69).to(dtype)
        whole = quantized_linear(x, weight, bias)
        _check(whole, x, weight, bias)
        for rows in (slice(0, 1), slice(7, 10), slice(3, 12), slice(60, 131)):
            assert torch.equal(quantized_linear(x[rows], weight, bias), whole[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_codes_at_the_ends_of_their_range_do_not_overflow(kind: str) -> None:
    weight = KINDS[kind](4, 320)
    x = torch.ones(3, 320)
    x[1] = -1
    x[2, ::2] = -1
    for byte in (0, 255, 127, 128):
        codes = torch.full_like(weight.codes.view(torch.uint8), byte).view(weight.codes.dtype)
        full = replace(weight, codes=codes)
        for lanes in (4, 8, 16):
            _check(native.multiply(x, (full,), None, lanes), x, full)


def test_the_reference_rounds_block_by_block() -> None:
    weight = replace(KINDS["int4 in 48"](2, 200).columns(10, 150))
    blocks = input_blocks(weight).tolist()
    # Inputs 10 .. 149 of groups of 48, of which each has a block of 32 and one of 16.
    cuts = [10, 32, 48, 80, 96, 128, 144, 150]
    assert [blocks.count(block) for block in sorted(set(blocks))] == [
        end - begin for begin, end in itertools.pairwise(cuts)
    ]
    x = torch.randn(3, 140)
    rounded = round_to_int8(x, weight)
    for begin, end in itertools.pairwise(cuts):
        part = slice(begin - 10, end - 10)
        scale = x[:, part].abs().amax(1, keepdim=True) / 127
        whole = rounded[:, part] / scale
        assert torch.equal(rounded[:, part], whole.round() * scale)
        assert whole.abs().amax(1).round().tolist() == [127] * 3
        assert ((rounded[:, part] - x[:, part]).abs() <= scale * 0.5000001).all()


def test_numbers_that_no_scale_can_hold() -> None:
    weight = KINDS["int4"](3, 96)
    x = torch.randn(6, 96)
    x[0, 40], x[1, 3], x[2, 95] = float("nan"), float("inf"), -float("inf")
    x[3] = 0
    x[4] = torch.rand(96) * 1e-40
    for lanes in (4, 8, 16):
        found = native.multiply(x, (weight,), None, lanes)
        assert found[:3].isnan().all()
        assert torch.equal(found[3:5], torch.zeros(2, 3))
        assert found[5].isfinite().all()
    assert torch.equal(round_to_int8(x, weight)[3:5], torch.zeros(2, 96))
    assert round_to_int8(x, weight)[:3].isnan().sum(1).tolist() == [32] * 3


def test_no_inputs_give_the_bias_and_no_rows_give_none() -> None:
    weight, bias = KINDS["int4"](3, 32), torch.randn(3)
    assert torch.equal(quantized_linear(torch.randn(2, 0), weight.columns(0, 0), bias), bias.repeat(2, 1))
    assert quantized_linear(torch.randn(0, 32), weight).shape == (0, 3)
    assert quantized_linear(torch.randn(2, 32), weight.rows(slice(0, 0))).shape == (2, 0)


def test_where_c_cannot_the_reference_computes() -> None:
    weight, x = KINDS["int8"](5, 77), torch.randn(3, 77)
    found = quantized_linear(x.half(), weight)
    assert found.dtype == torch.float16
    _check(found, x.half(), weight)


def test_groups_out_of_order_are_refused() -> None:
    weight = replace(KINDS["int4"](5, 64), group_of_column=torch.zeros(64, dtype=torch.int32))
    with pytest.raises(ValueError, match="int8_inputs needs groups in order"):
        quantized_linear(torch.randn(1, 64), weight)


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_multiply_like_one_on_any_threads(threads: int, set_threads: Callable[[int], None]) -> None:
    weight = KINDS["int4"](2401, 128)
    x, bias = torch.randn(5, 128), torch.randn(2401)
    expected = native.multiply(x, (weight,), bias)
    parts = tuple(weight.rows(slice(*cut)) for cut in ((0, 1), (1, 32), (32, 65), (65, 2401)))
    set_threads(threads)
    assert torch.equal(quantized_linear(x, parts, bias), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_that_was_not_written(kind: str, poison_memory: Callable[[], None]) -> None:
    weight, x = KINDS[kind](5, 77), torch.randn(3, 77)
    poison_memory()
    _check(native.multiply(x, (weight,), None), x, weight)


def test_a_recorded_step_computes_again() -> None:
    weight = KINDS["int3"](33, 70)
    x, found = torch.randn(2, 70), torch.empty(2, 33)
    recording = record(lambda: found.copy_(quantized_linear(x, weight)), Arena())
    x.copy_(torch.randn(2, 70))
    recording.replay()
    assert torch.equal(found, quantized_linear(x, weight))


def test_experts_take_rows_of_int8() -> None:
    gate_up = tuple((KINDS["int4"](24, 64), KINDS["int4"](24, 64)) for _ in range(2))
    down = tuple(KINDS["signed rows"](64, 24) for _ in range(2))
    x, ids = torch.randn(1, 64), torch.tensor([[1]])
    found = quantized_grouped_mlp(x, ids, torch.ones(1, 1), gate_up, down, silu_mul)
    hidden = silu_mul(quantized_linear(x, gate_up[1]))
    assert torch.equal(found, quantized_linear(hidden, down[1]))


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
        weight = IntGroups(codes, torch.ones(3, 1), None, columns, bits, columns, int8_inputs=True)
        for rows in (1, 5):
            assert quantized_linear(torch.ones(rows, columns), weight).isfinite().all()
"""


def test_nothing_is_read_behind_the_last_code() -> None:
    subprocess.run([sys.executable, "-c", _AT_THE_END_OF_MEMORY], check=True, timeout=100)
