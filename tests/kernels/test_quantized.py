"""Weights in few bits: what codes mean, at odd sizes; a part means what the same part of the whole means."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from penstock_kernels import (
    ExpertPart,
    Float8Grid,
    IntGroups,
    Quantized,
    TableBlocks,
    quantized_grouped_mlp,
    quantized_linear,
)
from penstock_kernels.base.bit_stream import columns_of, pack, stream_bytes, unpack
from penstock_kernels.native.recording import Arena, NotRecordable, record
from penstock_kernels.reference.quantized_linear import dequantize

ROWS, COLUMNS = 26, 77


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 100])
def test_a_stream_gives_back_what_was_packed(bits: int, count: int) -> None:
    values = torch.randint(0, 1 << bits, (3, count), dtype=torch.uint8)
    stream = pack(values, bits)
    assert stream.shape == (3, stream_bytes(count, bits))
    for row, packed in zip(values.tolist(), stream.tolist(), strict=True):
        number = sum(value << bits * place for place, value in enumerate(row))
        assert list(number.to_bytes(len(packed), "little")) == packed
    for first in (0, 1, count // 2, count - 1):
        assert torch.equal(unpack(stream, bits, first, count - first), values[:, first:])
        part = columns_of(stream, bits, first, count)
        assert torch.equal(unpack(part, bits, 0, count - first), values[:, first:])


def int_groups(bits: int, zeros: bool = False, group: int = 16, ordered: bool = True) -> IntGroups:
    codes = pack(torch.randint(0, 1 << bits, (ROWS, COLUMNS), dtype=torch.uint8), bits)
    groups = -(-COLUMNS // group)
    return IntGroups(
        codes,
        torch.rand(ROWS, groups).half(),
        torch.randint(0, 1 << bits, (ROWS, groups), dtype=torch.uint8) if zeros else None,
        COLUMNS,
        bits,
        group,
        group_of_column=None if ordered else torch.randint(0, groups, (COLUMNS,), dtype=torch.int32),
    )


def with_offsets(matrix: IntGroups) -> IntGroups:
    return replace(matrix, offsets=torch.randn(matrix.scales.shape).half())


def signed_groups() -> IntGroups:
    codes = torch.randint(-128, 128, (ROWS, COLUMNS), dtype=torch.int8)
    return IntGroups(codes, torch.rand(ROWS, 1), None, COLUMNS, 8, COLUMNS)


def float8_grid(rows: int, columns: int) -> Float8Grid:
    codes = torch.randn(ROWS, COLUMNS).to(torch.float8_e4m3fn)
    return Float8Grid(codes, torch.rand(-(-ROWS // rows), -(-COLUMNS // columns)), rows, columns)


def table_blocks(scale_dtype: torch.dtype, low_first: bool = True) -> TableBlocks:
    codes = torch.randint(0, 256, (ROWS, (COLUMNS + 1) // 2), dtype=torch.uint8)
    powers = torch.randint(-3, 4, (ROWS, -(-COLUMNS // 16))).float().exp2()
    tensor_scale = torch.rand(1) if scale_dtype == torch.float8_e4m3fn else None
    return TableBlocks(
        codes, torch.randn(16), powers.to(scale_dtype), COLUMNS, 16, 0, tensor_scale, low_first
    )


MATRICES: dict[str, Callable[[], Quantized]] = {
    **{f"int{bits}": lambda bits=bits: int_groups(bits) for bits in (2, 3, 4, 5, 8)},  # type: ignore[misc]
    "int4 with zeros": lambda: int_groups(4, zeros=True),
    "int3 with zeros, a row in a group": lambda: int_groups(3, zeros=True, group=COLUMNS),
    "int4 in activation order": lambda: int_groups(4, zeros=True, ordered=False),
    "signed int8": signed_groups,
    "int4 with offsets": lambda: with_offsets(int_groups(4)),
    "float8 of a tensor": lambda: float8_grid(ROWS, COLUMNS),
    "float8 of rows": lambda: float8_grid(1, COLUMNS),
    "float8 of blocks": lambda: float8_grid(8, 16),
    "table of floats": lambda: table_blocks(torch.float32, low_first=False),
    "table of powers": lambda: table_blocks(torch.float8_e8m0fnu),
    "table of float8": lambda: table_blocks(torch.float8_e4m3fn),
}


def scalar(matrix: Quantized, row: int, column: int) -> float:
    """One number, from the definition, in Python."""
    if isinstance(matrix, IntGroups):
        group = column // matrix.group_size
        if matrix.group_of_column is not None:
            group = int(matrix.group_of_column[column])
        if matrix.is_signed:
            code, zero = int(matrix.codes[row, column]), 0
        else:
            stream = int.from_bytes(bytes(matrix.codes[row].tolist()), "little")
            code = stream >> column * matrix.bits & (1 << matrix.bits) - 1
            zero = 1 << matrix.bits - 1 if matrix.offsets is None else 0
        zero = zero if matrix.zeros is None else int(matrix.zeros[row, group])
        offset = 0.0 if matrix.offsets is None else float(matrix.offsets[row, group])
        return (code - zero) * float(matrix.scales[row, group]) + offset
    if isinstance(matrix, Float8Grid):
        block = matrix.scales[row // matrix.block_rows, column // matrix.block_columns]
        return float(matrix.codes[row, column].float()) * float(block)
    byte = int(matrix.codes[row, column // 2])
    is_low = (column % 2 == 0) == matrix.low_first
    scale = float(matrix.scales[row, column // matrix.block_size].float())
    number = float(matrix.table[byte & 15 if is_low else byte >> 4]) * scale
    return number if matrix.tensor_scale is None else number * float(matrix.tensor_scale)


@pytest.mark.parametrize("name", MATRICES)
def test_codes_mean_what_the_definition_says(name: str) -> None:
    matrix = MATRICES[name]()
    found = dequantize(matrix)
    assert found.shape == matrix.shape == (ROWS, COLUMNS)
    expected = [[scalar(matrix, row, column) for column in range(COLUMNS)] for row in range(ROWS)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", MATRICES)
def test_a_part_means_the_same_as_in_the_whole(name: str) -> None:
    matrix = MATRICES[name]()
    whole = dequantize(matrix)
    cuts = ((0, 7), (5, 6), (9, 25), (13, COLUMNS), (16, 48), (31, 32), (76, COLUMNS))
    for rows in (
        slice(0, ROWS),
        slice(3, 9),
        slice(8, 24),
        slice(25, ROWS),
        slice(0, ROWS, 2),
        slice(1, ROWS, 2),
    ):
        for start, stop in cuts:
            part = matrix.rows(rows).columns(start, stop)
            assert part.shape == whole[rows, start:stop].shape
            assert torch.equal(dequantize(part), whole[rows, start:stop])
            # A part of a part, as a rank has of one of several fused projections.
            assert torch.equal(
                dequantize(part.columns(stop - start - 1, stop - start)), whole[rows, stop - 1 : stop]
            )


@pytest.mark.parametrize("name", MATRICES)
def test_rows_can_be_put_in_another_order(name: str) -> None:
    matrix = MATRICES[name]().rows(slice(2, 24)).columns(3, 70)
    order = torch.randperm(22)
    found = dequantize(matrix.reordered(lambda rows: rows[order]))
    assert torch.equal(found, dequantize(matrix)[order])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_of_parts_of_all_kinds_is_that_of_their_numbers(dtype: torch.dtype) -> None:
    parts = (torch.randn(5, COLUMNS).to(dtype), *(make() for make in MATRICES.values()))
    x = torch.randn(3, COLUMNS).to(dtype)
    numbers = torch.cat([part if isinstance(part, torch.Tensor) else dequantize(part) for part in parts])
    bias = torch.randn(len(numbers)).to(dtype)
    expected = x.double() @ numbers.double().T + bias.double()
    # An implementation may round numbers to the type of x, and does so with the result.
    largest = x.double().abs() @ numbers.double().abs().T + bias.double().abs()
    found = quantized_linear(x, parts, bias)
    assert found.dtype == dtype
    assert ((found.double() - expected).abs() <= largest * torch.finfo(dtype).eps * 8).all()


def test_a_row_has_the_same_bits_in_any_company() -> None:
    x = torch.randn(9, COLUMNS)
    for make in MATRICES.values():
        weight = make()
        together = quantized_linear(x, weight, None, invariant=True)
        for row in range(9):
            assert torch.equal(
                quantized_linear(x[row : row + 1], weight, None, invariant=True)[0], together[row]
            )


def test_experts_give_what_their_numbers_give() -> None:
    dim, size, count = COLUMNS, ROWS, 3
    gate_up = tuple((int_groups(4), float8_grid(8, 16)) for _ in range(count))
    codes = pack(torch.randint(0, 16, (dim, size), dtype=torch.uint8), 4)
    down = tuple(IntGroups(codes, torch.rand(dim, 2), None, size, 4, 16) for _ in range(count))
    x, chosen = torch.randn(5, dim), torch.tensor([[0, 2], [2, 1], [0, 1], [2, 0], [0, 2]])
    weights, bias = torch.rand(5, 2), torch.randn(count, 2 * size)

    def activate(rows: torch.Tensor) -> torch.Tensor:
        return rows[:, :size] * rows[:, size:].sigmoid()

    expected = torch.zeros(5, dim)
    for token in range(5):
        for place in range(2):
            expert = int(chosen[token, place])
            numbers = torch.cat([dequantize(part) for part in gate_up[expert]])
            hidden = activate((numbers @ x[token] + bias[expert])[None])[0]
            expected[token] += weights[token, place] * (dequantize(down[expert]) @ hidden)
    found = quantized_grouped_mlp(x, chosen, weights, gate_up, down, activate, bias)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    total = torch.zeros(5, dim)
    for first, end in ((0, 1), (1, 1), (1, 3)):
        mine, part = slice(first, end), ExpertPart(first, count)
        rest = gate_up[mine], down[mine], activate, bias[mine]
        total += quantized_grouped_mlp(x, chosen, weights, *rest, part=part)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
    with pytest.raises(ValueError, match="3 experts are no"):
        quantized_grouped_mlp(x, chosen, weights, gate_up, down, activate, part=ExpertPart(1, 3))


def test_wrong_shapes_are_refused() -> None:
    x = torch.randn(2, COLUMNS)
    with pytest.raises(ValueError, match="against"):
        quantized_linear(x[:, 1:].contiguous(), int_groups(4))
    with pytest.raises(ValueError, match="one bias per row"):
        quantized_linear(x, int_groups(4), torch.zeros(3))
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        quantized_linear(x.double(), int_groups(4))


def test_what_would_keep_floats_of_every_layer_is_not_recorded() -> None:
    x, weight = torch.randn(2, COLUMNS).half(), int_groups(4)  # of this type there are no products in C
    with pytest.raises(NotRecordable, match="floats"):
        record(lambda: quantized_linear(x, weight), Arena())
