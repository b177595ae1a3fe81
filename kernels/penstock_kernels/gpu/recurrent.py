"""What the kernels of recurrent layers share: how much of a state a token leaves, and which tokens are of one
sequence."""

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


@triton.jit
def run_length(slot_ptr, span, KEEPS: tl.constexpr):
    """How many spans, from this one on, are parts of one sequence; 0 where this one is not the first of them.

    That is 1 unless states are kept. At most 32: a token and its drafts.
    """
    if KEEPS:
        places, slot = tl.arange(0, 32), tl.load(slot_ptr + span)
        others = tl.load(slot_ptr + span + places, mask=span + places < tl.num_programs(0), other=-1)
        length = tl.min(tl.where(others == slot, 32, places), axis=0)
        before = tl.load(slot_ptr + tl.maximum(span - 1, 0))
        length = tl.where((span > 0) & (before == slot), 0, length)
    else:
        length = 1
    return length
