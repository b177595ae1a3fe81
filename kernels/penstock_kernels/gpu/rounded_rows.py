"""Rows in 8 bits, for products with weights that have 8 bits, too: every block of inputs becomes codes and a scale."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.quantized import LARGEST_FLOAT8, LARGEST_INPUT, Float8Grid, Quantized, TableBlocks
from penstock_kernels.gpu.quantized_tiles import groups_of

# The smallest normal number of float32: where a scale would be smaller, all numbers are as good as zero.
_TINY: tl.constexpr = tl.constexpr(1.1754943508222875e-38)
# A float of this size has no digits behind the point: adding it rounds to a whole number, of two as near the even one.
_ROUNDS: tl.constexpr = tl.constexpr(12582912.0)


class Rows(NamedTuple):
    """The rows that are multiplied: numbers as they are, or bytes with the scales of their blocks, [num_rows,
    num_blocks]. Where there are no scales, any tensor takes their place, and is not read."""

    numbers: torch.Tensor
    scales: torch.Tensor


@triton.jit
def _round_rows_kernel(
    x_ptr, code_ptr, scale_ptr, stride_x, stride_code, stride_scale, LENGTH: tl.constexpr, FIRST: tl.constexpr,
    LARGEST: tl.constexpr, IS_FLOAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = block * BLOCK - FIRST + tl.arange(0, BLOCK)
    is_here = (at >= 0) & (at < LENGTH)
    numbers = tl.load(x_ptr + row * stride_x + at, mask=is_here, other=0.0).to(tl.float32)
    # A NaN makes the scale infinite, so that it is not lost among other numbers.
    largest = tl.max(tl.where(numbers == numbers, tl.abs(numbers), float("inf")), axis=0)
    scale = tl.div_rn(largest, LARGEST)
    is_normal = (scale >= _TINY) & (scale < float("inf"))
    tl.store(
        scale_ptr + row * stride_scale + block, tl.where(is_normal | (scale == float("inf")), scale, 0.0)
    )
    scaled = tl.where(
        is_normal, tl.div_rn(numbers, tl.where(is_normal, scale, 1.0) + tl.zeros_like(numbers)), 0.0
    )
    codes = scaled if IS_FLOAT else scaled + _ROUNDS - _ROUNDS
    tl.store(code_ptr + row * stride_code + at, codes.to(code_ptr.dtype.element_ty), mask=is_here)


def rows_for(x: torch.Tensor, matrix: Quantized) -> Rows:
    """The rows that this matrix multiplies in the place of `x`."""
    if isinstance(matrix, TableBlocks) or not matrix.input_bits:
        return Rows(x, x)
    num_rows, length = x.shape
    is_float, first, block = isinstance(matrix, Float8Grid), groups_of(matrix).first, matrix.input_block
    # Rows of whole words of 16 bytes.
    width, num_blocks = triton.cdiv(length, 16) * 16, triton.cdiv(first + length, block)
    dtype = torch.float8_e4m3fn if is_float else torch.int8
    codes = torch.empty((num_rows, width), dtype=dtype, device=x.device)
    scales = torch.empty((num_rows, num_blocks), dtype=torch.float32, device=x.device)
    _round_rows_kernel[(num_rows, num_blocks)](
        x,
        codes,
        scales,
        x.stride(0),
        codes.stride(0),
        scales.stride(0),
        LENGTH=length,
        FIRST=first,
        LARGEST=float(LARGEST_FLOAT8 if is_float else LARGEST_INPUT[8]),
        IS_FLOAT=is_float,
        BLOCK=block,
        num_warps=1,
    )
    return Rows(codes[:, :length], scales)
