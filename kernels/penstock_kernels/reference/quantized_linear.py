"""Products with weights in few bits, by PyTorch: some rows at a time become floats, and are multiplied."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from penstock_kernels.base.bit_stream import unpack
from penstock_kernels.base.quantized import (
    LARGEST_FLOAT8,
    LARGEST_INPUT,
    Float8Grid,
    IntGroups,
    Matrix,
    Quantized,
    Rounding,
    TableBlocks,
    input_blocks,
    rounds_inputs,
)
from penstock_kernels.reference.linear import linear

# The most numbers that become floats at a time.
_MAX_NUMBERS = 1 << 24


def dequantize(matrix: Quantized, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The numbers that the codes mean, computed in float32 and rounded once: [out_features, in_features]."""
    if isinstance(matrix, IntGroups):
        return _of_groups(matrix).to(dtype)
    if isinstance(matrix, Float8Grid):
        return _of_grid(matrix).to(dtype)
    return _of_table(matrix).to(dtype)


def round_inputs(x: torch.Tensor, matrix: Rounding) -> torch.Tensor:
    """The rows that are multiplied by this matrix in the place of `x`, in float32.

    Every number is a whole one of its bits, or a float of 8 bits, times the scale of its block, in which the largest
    number is the largest of so many bits. Where a scale would be below the normal numbers of float32, it is zero; where
    a number is not finite, its block is not.
    """
    blocks, numbers = input_blocks(matrix), x.float()
    count = int(blocks[-1]) + 1 if len(blocks) else 0
    largest = torch.zeros(len(x), count, device=x.device)
    largest.scatter_reduce_(1, blocks.expand_as(numbers), numbers.abs(), "amax")
    is_whole = isinstance(matrix, IntGroups)
    scales = (largest / (LARGEST_INPUT[matrix.input_bits] if is_whole else LARGEST_FLOAT8))[:, blocks]
    is_normal = scales.isfinite() & (scales >= torch.finfo(torch.float32).tiny)
    codes = torch.where(is_normal, numbers / scales, 0.0)
    codes = codes.round() if is_whole else codes.to(torch.float8_e4m3fn).float()
    return codes * torch.where(is_normal | ~scales.isfinite(), scales, 0.0)


def quantized_linear(
    x: torch.Tensor,
    parts: tuple[Quantized, ...],
    bias: torch.Tensor | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    if rounds_inputs(parts[0]):
        plain = tuple(replace(part, input_bits=0) for part in parts if rounds_inputs(part))
        its_bias = None if bias is None else bias.float()
        return quantized_linear(round_inputs(x, parts[0]), plain, its_bias, invariant).to(x.dtype)
    pieces = [piece for part in parts for piece in _in_pieces(part)]
    counts = [piece.out_features for piece in pieces]
    biases = [None] * len(pieces) if bias is None else torch.split(bias, counts)
    products = [
        linear(x, (dequantize(piece, x.dtype),), its_bias, invariant)
        for piece, its_bias in zip(pieces, biases, strict=True)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def multiply(
    x: torch.Tensor, parts: tuple[Matrix, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    """`quantized_linear`, but parts may be plain weights."""
    biases = [None] * len(parts) if bias is None else torch.split(bias, [part.shape[0] for part in parts])
    products = [
        linear(x, (part,), its_bias, invariant)
        if isinstance(part, torch.Tensor)
        else quantized_linear(x, (part,), its_bias, invariant)
        for part, its_bias in zip(parts, biases, strict=True)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def _in_pieces(matrix: Quantized) -> Iterator[Quantized]:
    """Yields the matrix some rows at a time, so that a large one is never all there in floats."""
    out_features, in_features = matrix.shape
    step = max(1, _MAX_NUMBERS // max(1, in_features))
    for start in range(0, out_features, step):
        yield matrix.rows(slice(start, min(start + step, out_features)))


def _of_groups(matrix: IntGroups) -> torch.Tensor:
    index = matrix.group_of_column
    if index is None:
        index = _blocks(matrix.first, matrix.in_features, matrix.group_size, matrix.device)
    codes = unpack(matrix.codes, matrix.bits, 0, matrix.in_features)
    zeros = float(matrix.usual_zero) if matrix.zeros is None else matrix.zeros.float()[:, index]
    numbers = (codes.float() - zeros) * matrix.scales.float()[:, index]
    return numbers if matrix.offsets is None else numbers + matrix.offsets.float()[:, index]


def _of_grid(matrix: Float8Grid) -> torch.Tensor:
    device = matrix.device
    rows = _blocks(matrix.first_row, matrix.out_features, matrix.block_rows, device)
    columns = _blocks(matrix.first_column, matrix.in_features, matrix.block_columns, device)
    return matrix.codes.float() * matrix.scales[rows][:, columns]


def _of_table(matrix: TableBlocks) -> torch.Tensor:
    codes = matrix.codes if matrix.low_first else matrix.codes << 4 | matrix.codes >> 4
    numbers = matrix.table[unpack(codes, 4, 0, matrix.in_features).int()]
    index = _blocks(matrix.first, matrix.in_features, matrix.block_size, matrix.device)
    scales = matrix.scales.float()
    if matrix.tensor_scale is not None:
        scales = scales * matrix.tensor_scale
    return numbers * scales[:, index]


def _blocks(first: int, count: int, size: int, device: torch.device) -> torch.Tensor:
    """The block of each of `count` rows or columns."""
    return (first + torch.arange(count, device=device)) // size
