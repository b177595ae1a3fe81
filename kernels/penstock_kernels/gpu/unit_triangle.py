"""The inverse of a lower triangular matrix that has ones on its diagonal, in registers."""

import triton
import triton.language as tl

from penstock_kernels.gpu.split_product import split_product

# Rows of a block whose inverse is found row by row.
BLOCK = tl.constexpr(16)


@triton.jit
def inverse_of(lower, SIZE: tl.constexpr):
    """(1 + lower)^-1. lower: [SIZE, SIZE] float32, zero on its diagonal and above it.

    That of the blocks on the diagonal is B. What is left below them moves a row down by a block at least, so that as
    many turns of X = B - B left X as there are blocks, less one, give the whole. No power of `lower` is taken: keys
    that are alike would make it large.
    """
    rows, columns = tl.arange(0, SIZE)[:, None] // BLOCK, tl.arange(0, SIZE)[None, :] // BLOCK
    blocks = _inverse_of_blocks(lower, SIZE)
    nothing = tl.zeros([SIZE, SIZE], tl.float32)
    back = split_product(blocks, tl.where(rows > columns, -lower, 0.0), nothing)
    inverse = blocks
    for _ in range(SIZE // BLOCK - 1):
        inverse = split_product(back, inverse, blocks)
    return inverse


@triton.jit
def _inverse_of_blocks(lower, SIZE: tl.constexpr):
    """The inverses of the blocks on the diagonal, all at the same time, row after row; zero elsewhere."""
    COUNT: tl.constexpr = SIZE // BLOCK
    here = tl.arange(0, COUNT)[:, None, None, None] == tl.arange(0, COUNT)[None, None, :, None]
    blocks = tl.sum(tl.where(here, tl.reshape(lower, [COUNT, BLOCK, COUNT, BLOCK]), 0.0), axis=2)
    rows, columns = tl.arange(0, BLOCK)[None, :, None], tl.arange(0, BLOCK)[None, None, :]
    found = tl.broadcast_to(tl.where(rows == columns, 1.0, 0.0), [COUNT, BLOCK, BLOCK])
    for row in range(1, BLOCK):
        factors = tl.sum(tl.where(rows == row, blocks, 0.0), axis=1)
        change = tl.sum(factors[:, :, None] * found, axis=1)
        found -= tl.where(rows == row, change[:, None, :], 0.0)
    return diagonal_of(found, SIZE)


@triton.jit
def diagonal_of(blocks, SIZE: tl.constexpr):
    """[SIZE, SIZE] of [SIZE // BLOCK, BLOCK, BLOCK]: those on its diagonal; zero elsewhere."""
    COUNT: tl.constexpr = SIZE // BLOCK
    here = tl.arange(0, COUNT)[:, None, None, None] == tl.arange(0, COUNT)[None, None, :, None]
    spread = tl.where(here, tl.reshape(blocks, [COUNT, BLOCK, 1, BLOCK]), 0.0)
    return tl.reshape(spread, [SIZE, SIZE])
