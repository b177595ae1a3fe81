"""Matrix products nearly as exact as those of float32, by units that multiply 16 bits.

A number of float32 is the sum of two of bfloat16 but for 2^-17 of it. What is of bfloat16 is multiplied as it is.
"""

import triton
import triton.language as tl


@triton.jit
def halves(x):
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def product_of_halves(left_high, left_low, right, total):
    """Added to `total`. The product of both low halves is left out: it is as small as what the halves do not have."""
    right_high, right_low = halves(right)
    total = tl.dot(left_high, right_low, tl.dot(left_low, right_high, total))
    return tl.dot(left_high, right_high, total)


@triton.jit
def split_product(left, right, total):
    """The product of float32 tiles, added to `total`."""
    left_high, left_low = halves(left)
    return product_of_halves(left_high, left_low, right, total)


@triton.jit
def given_product(left, right, total):
    """The product of bfloat16 and float32 tiles, added to `total`."""
    right_high, right_low = halves(right)
    return tl.dot(left, right_high, tl.dot(left, right_low, total))
