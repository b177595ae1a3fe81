"""What the kernels of recurrent layers share: how much of a state a token leaves."""

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """log(1 + e^x), also where that is small: what rounding 1 + y loses is put back by y / ((1 + y) - 1)."""
    y = tl.exp(-tl.abs(x))
    whole = 1.0 + y
    return tl.where(x > 0.0, x, 0.0) + tl.where(whole == 1.0, y, tl.log(whole) * (y / (whole - 1.0)))


@triton.jit
def bounded_step(x, min_step, max_step):
    """A comparison with NaN is false: it stays."""
    step = softplus(x)
    step = tl.where(step < min_step, min_step, step)
    return tl.where(step > max_step, max_step, step)
