"""Weights of few bits of every kind, and products with them as they are defined: cases for what computes them in C."""

from collections.abc import Callable
from dataclasses import replace

import torch
from penstock_kernels import Float8Grid, IntGroups, Quantized, TableBlocks
from penstock_kernels.base.bit_stream import pack
from penstock_kernels.reference.quantized_linear import dequantize, round_inputs

F8, POWERS = torch.float8_e4m3fn, torch.float8_e8m0fnu


def int_groups(rows: int, columns: int, bits: int, group: int, zeros: bool, dtype: torch.dtype) -> IntGroups:
    codes = pack(torch.randint(0, 1 << bits, (rows, columns), dtype=torch.uint8), bits)
    shape = rows, -(-columns // group)
    points = torch.randint(0, 1 << bits, shape, dtype=torch.uint8) if zeros else None
    return IntGroups(codes, torch.randn(shape).to(dtype), points, columns, bits, group)


def signed_groups(rows: int, columns: int, group: int, largest_zero: int = 9) -> IntGroups:
    codes = torch.randint(-128, 128, (rows, columns), dtype=torch.int8)
    shape = rows, -(-columns // group)
    zeros = torch.randint(-largest_zero, largest_zero, shape, dtype=torch.int8) if group < columns else None
    return IntGroups(codes, torch.rand(shape), zeros, columns, 8, group)


def rounding(matrix: IntGroups, bits: int) -> IntGroups:
    return replace(matrix, input_bits=bits)


def with_offsets(matrix: IntGroups) -> IntGroups:
    return replace(matrix, offsets=torch.randn(matrix.scales.shape).to(matrix.scales.dtype))


def float8_grid(rows: int, columns: int, block_rows: int, block: int) -> Float8Grid:
    codes = (torch.randn(rows, columns) * torch.randn(rows, columns).exp2()).to(F8)
    return Float8Grid(codes, torch.rand(-(-rows // block_rows), -(-columns // block)), block_rows, block)


def table_blocks(rows: int, columns: int, block: int, dtype: torch.dtype, low_first: bool) -> TableBlocks:
    codes = torch.randint(0, 256, (rows, (columns + 1) // 2), dtype=torch.uint8)
    scales = torch.randint(-9, 9, (rows, -(-columns // block))).float().exp2().to(dtype)
    tensor_scale = None if dtype == POWERS else torch.rand(1)
    return TableBlocks(codes, torch.randn(16), scales, columns, block, 0, tensor_scale, low_first)


Make = Callable[[int, int], Quantized]
KINDS: dict[str, Make] = {
    "int4": lambda rows, columns: int_groups(rows, columns, 4, 32, False, torch.float16),
    "int4 with zeros": lambda rows, columns: int_groups(rows, columns, 4, 128, True, torch.bfloat16),
    "int4 of rows": lambda rows, columns: int_groups(rows, columns, 4, columns, True, torch.float32),
    "int8": lambda rows, columns: int_groups(rows, columns, 8, 16, True, torch.float32),
    "signed": lambda rows, columns: signed_groups(rows, columns, 64),
    "int4 with offsets": lambda rows, columns: with_offsets(
        int_groups(rows, columns, 4, 32, False, torch.float32)
    ),
    "int5 with offsets": lambda rows, columns: with_offsets(
        int_groups(rows, columns, 5, 32, True, torch.float16)
    ),
    "signed with offsets": lambda rows, columns: with_offsets(signed_groups(rows, columns, 16)),
    "signed rows": lambda rows, columns: signed_groups(rows, columns, columns),
    "int2": lambda rows, columns: int_groups(rows, columns, 2, 16, True, torch.float16),
    "int3": lambda rows, columns: int_groups(rows, columns, 3, 32, True, torch.float16),
    "int5": lambda rows, columns: int_groups(rows, columns, 5, 20, False, torch.float32),
    "nf4": lambda rows, columns: table_blocks(rows, columns, 64, torch.float32, False),
    "mxfp4": lambda rows, columns: table_blocks(rows, columns, 32, POWERS, True),
    "nvfp4": lambda rows, columns: table_blocks(rows, columns, 16, F8, True),
    "fp8 of a tensor": lambda rows, columns: float8_grid(rows, columns, rows, columns),
    "fp8 of rows": lambda rows, columns: float8_grid(rows, columns, 1, columns),
    "fp8 of blocks": lambda rows, columns: float8_grid(rows, columns, 32, 128),
}
# Kinds whose products round the rows first.
ROUNDING_KINDS: dict[str, Callable[[int, int], IntGroups]] = {
    f"{name}, rows of int{bits}": lambda rows, columns, make=make, bits=bits: rounding(  # type: ignore[misc]
        make(rows, columns), bits
    )
    for bits in (8, 16)
    for name, make in {
        "int4": lambda rows, columns: int_groups(rows, columns, 4, 32, False, torch.float16),
        "int4 with zeros": lambda rows, columns: int_groups(rows, columns, 4, 128, True, torch.bfloat16),
        "int4 in 64": lambda rows, columns: int_groups(rows, columns, 4, 64, True, torch.float32),
        "int4 in 48": lambda rows, columns: int_groups(rows, columns, 4, 48, False, torch.float16),
        "int4 in 16": lambda rows, columns: int_groups(rows, columns, 4, 16, True, torch.float16),
        "int4 of rows": lambda rows, columns: int_groups(rows, columns, 4, columns, True, torch.float32),
        "int8": lambda rows, columns: int_groups(rows, columns, 8, 32, True, torch.float32),
        "int8 in 128": lambda rows, columns: int_groups(rows, columns, 8, 128, False, torch.bfloat16),
        "signed": lambda rows, columns: signed_groups(rows, columns, 64, 128),
        "signed rows": lambda rows, columns: signed_groups(rows, columns, columns),
        "signed in 16": lambda rows, columns: signed_groups(rows, columns, 16, 128),
        "int2": lambda rows, columns: int_groups(rows, columns, 2, 16, True, torch.float16),
        "int3": lambda rows, columns: int_groups(rows, columns, 3, 32, True, torch.float16),
        "int5": lambda rows, columns: int_groups(rows, columns, 5, 20, False, torch.float32),
        "int7": lambda rows, columns: int_groups(rows, columns, 7, 64, True, torch.float16),
    }.items()
}
ALL: dict[str, Make] = {**KINDS, **ROUNDING_KINDS}
# Ranges of columns: whole groups, and those that begin and end within one; odd sizes.
PARTS = [(0, 256), (0, 1000), (64, 1000), (16, 255), (8, 88), (2, 65), (13, 93), (7, 8)]


def _terms(weight: Quantized, numbers: torch.Tensor) -> torch.Tensor:
    """How large what is added may be: a number that is a sum may be much smaller than its terms."""
    if not isinstance(weight, IntGroups) or weight.offsets is None:
        return numbers.abs()
    offsets = weight.offsets.repeat_interleave(weight.group_size, dim=1)
    offsets = offsets[:, weight.first : weight.first + weight.in_features]
    return numbers.abs() + 2 * offsets.double().abs()


def check(found: torch.Tensor, x: torch.Tensor, weight: Quantized, bias: torch.Tensor | None = None) -> None:
    """Against sums in float64, of what rows are rounded to where they are."""
    rounds = isinstance(weight, IntGroups) and weight.input_bits
    rows = (round_inputs(x, weight) if rounds else x).double()  # type: ignore[arg-type]
    numbers = dequantize(weight).double()
    expected, largest = rows @ numbers.T, rows.abs() @ _terms(weight, numbers).T
    if bias is not None:
        expected, largest = expected + bias.double(), largest + bias.double().abs()
    assert ((found.double() - expected).abs() <= largest * torch.finfo(found.dtype).eps * 8).all()
