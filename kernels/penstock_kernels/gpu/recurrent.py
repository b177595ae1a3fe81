"""Code that the kernels of recurrent layers share: how much of a state a token leaves, which tokens are of one
sequence, and where its chunks are."""

import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import RecurrentSpans, Singles


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


@triton.jit
def bounds_of(bound_ptr, number):
    """The bounds of a longer span: which one it is, its first token, its end, and the number of its first chunk."""
    row = bound_ptr + 4 * number
    return tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)


@triton.jit
def span_of_chunk(bound_ptr, chunk, num_spans):
    """Which of the longer spans a chunk is of."""
    number = tl.full([], -1, tl.int64)
    for first in range(0, num_spans, 128):
        spans = first + tl.arange(0, 128)
        begins = tl.load(bound_ptr + 4 * spans + 3, mask=spans < num_spans, other=chunk + 1)
        number += tl.sum((begins <= chunk).to(tl.int64), axis=0)
    return number


@triton.jit
def chunk_at(bound_ptr, chunk, num_spans, CHUNK: tl.constexpr):
    """The first token of a chunk, and the end of its span."""
    _, begin, end, first_chunk = bounds_of(bound_ptr, span_of_chunk(bound_ptr, chunk, num_spans))
    return begin + (chunk - first_chunk) * CHUNK, end


def singles_of(spans: RecurrentSpans) -> Singles | None:
    """The spans of one token, if there are any. Where all are, they are their own rows, and nothing reads these."""
    return Singles(spans.slots, spans.slots, spans.is_first) if spans.are_single else spans.singles()
