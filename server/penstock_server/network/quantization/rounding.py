"""Numbers to codes: how rows of floats become one of the families of weights in few bits.

A group, block or row gets its codes from its own numbers alone, by operations whose result does not depend on what is
computed beside it: any part of a matrix that is cut between groups gets the codes that it has in the whole.
"""

from typing import NamedTuple

import torch
from penstock_kernels import Float8Grid, IntGroups, TableBlocks
from penstock_kernels.base.bit_stream import pack

# The version of all codes made here. Raise it when any of them changes: codes kept by earlier starts are made anew.
ROUNDING_VERSION = 1

# The table of bitsandbytes: quantiles of a normal distribution.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
# Likewise: floats of a sign, two bits of exponent and one of mantissa, in order. Zero is there twice.
FP4 = tuple(number / 12 for number in (-12, -8, -6, -4, -3, -2, -0.0625, 0, 0, 0.0625, 2, 3, 4, 6, 8, 12))
# The block size of bitsandbytes.
TABLE_BLOCK = 64
# Where the largest number of a group lies among codes of -8 to 7; the one with the smallest error is taken. In groups
# of 128 of a normal distribution it is 0.0975 of the deviation: 0.0968 with 23 candidates, 0.1033 with -8 alone, and
# 0.1006 with zero points, which would take a byte more.
_LARGEST_INT4 = (-7.5, -8.1, -8.7, -9.3)
_LARGEST_INT8 = 127.0
_LARGEST_FLOAT8 = 448.0


def to_int8_rows(rows: torch.Tensor) -> IntGroups:
    """Signed integers with a scale for every row."""
    scales = _usable(rows.abs().amax(1, keepdim=True) / _LARGEST_INT8)
    codes = (rows / scales).round().clamp(-_LARGEST_INT8, _LARGEST_INT8).to(torch.int8)
    return IntGroups(codes, scales, None, rows.shape[1], 8, rows.shape[1])


def to_float8_rows(rows: torch.Tensor) -> Float8Grid:
    """Floats of 8 bits with a scale for every row."""
    scales = _usable(rows.abs().amax(1, keepdim=True) / _LARGEST_FLOAT8)
    codes = (rows / scales).clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn)
    return Float8Grid(codes, scales, 1, rows.shape[1])


def to_int4_groups(rows: torch.Tensor, group_size: int) -> IntGroups:
    """Integers of 4 bits around 8, with a scale for every group; `group_size` is a power of two."""
    groups = _divided(rows, group_size)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    # Of two numbers that are equally large, always the same is taken.
    largest = torch.where(-low > high, low, high)
    best = _rounded(groups, largest / _LARGEST_INT4[0])
    for place in _LARGEST_INT4[1:]:
        best = _better(best, _rounded(groups, largest / place))
    codes = pack((best.codes + 8).to(torch.uint8).flatten(1)[:, : rows.shape[1]], 4)
    return IntGroups(codes, best.scales.squeeze(-1).bfloat16(), None, rows.shape[1], 4, group_size)


def to_table_blocks(rows: torch.Tensor, numbers: tuple[float, ...]) -> TableBlocks:
    """Places in an ascending table, with the largest number of every block of a row as its scale."""
    blocks = _divided(rows, TABLE_BLOCK)
    scales = blocks.abs().amax(-1, keepdim=True)
    table = torch.tensor(numbers, device=rows.device)
    # Round as bitsandbytes does: multiply by the inverse, and of two equally near codes take the lower one.
    shares = blocks * (1.0 / scales.clamp(min=1e-38))
    places = torch.bucketize(shares, (table[:-1] + table[1:]) / 2).to(torch.uint8)
    codes = pack(places.flatten(1)[:, : rows.shape[1]], 4)
    return TableBlocks(codes, table, scales.squeeze(-1), rows.shape[1], TABLE_BLOCK)


class _Int4(NamedTuple):
    """Codes from -8 to 7, scales as they are kept, and the error of each group."""

    codes: torch.Tensor
    scales: torch.Tensor
    errors: torch.Tensor


def _rounded(groups: torch.Tensor, scales: torch.Tensor) -> _Int4:
    scales = _usable(scales.bfloat16().float())
    codes = (groups / scales).round().clamp(-8, 7)
    return _Int4(codes, scales, _sum_of_squares(codes * scales - groups))


def _better(one: _Int4, other: _Int4) -> _Int4:
    """Group by group."""
    is_better = other.errors < one.errors
    return _Int4(*(torch.where(is_better, new, old) for new, old in zip(other, one, strict=True)))


def _sum_of_squares(errors: torch.Tensor) -> torch.Tensor:
    """Along the last dimension, a power of two, always in this order: that of a sum of torch depends on the shape."""
    sums = errors * errors
    while sums.shape[-1] > 1:
        half = sums.shape[-1] // 2
        sums = sums[..., :half] + sums[..., half:]
    return sums


def _usable(scales: torch.Tensor) -> torch.Tensor:
    """Zeros have any scale but 0."""
    return torch.where(scales == 0, 1.0, scales)


def _divided(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, groups, size]; the last group may get zeros."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % size))
    return padded.view(len(rows), -1, size)
