"""Short convolutions of spans of several tokens: tiles of tokens and channels, all side by side.

Inputs are read as they are given, once for each tap; but for the first time a multiprocessor has them in its cache.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.chunk_carry import CHUNK
from penstock_kernels.gpu.recurrent import bounds_of, span_of_chunk

# Channels of a program: 32 sums per thread at 4 warps, and rows of 128 bytes. Unmeasured.
_BLOCK = 64


@triton.jit
def _convolve_state(
    states, weight_ptr, since, mask, columns, total, CHANNELS: tl.constexpr, WIDTH: tl.constexpr
):
    """Adds what a state's inputs give to tokens. since: [CHUNK, 1], how many tokens of the span are before each."""
    for tap in tl.static_range(WIDTH - 1):
        is_seen = mask & (since + tap < WIDTH - 1)
        seen = tl.load(states + (since + tap) * CHANNELS + columns, mask=is_seen, other=0.0)
        weight = tl.load(weight_ptr + columns * WIDTH + tap, mask=columns < CHANNELS, other=0.0)
        total += seen.to(tl.float32) * weight.to(tl.float32)
    return total


@triton.jit
def _replace_state(
    x_ptr, states, begin, end, stride_x, is_known, columns,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Replaces a state by the last inputs of its span; where the span is short, some of the state's own stay."""
    places = tl.arange(0, BLOCK_WIDTH)[:, None]
    mask, after = (places < WIDTH - 1) & (columns < CHANNELS), places + (end - begin)
    is_old = after < WIDTH - 1
    old = tl.load(states + after * CHANNELS + columns, mask=mask & is_old & is_known, other=0.0)
    tokens = begin + after - (WIDTH - 1)
    new = tl.load(x_ptr + tokens * stride_x + columns, mask=mask & (after >= WIDTH - 1), other=0.0)
    # Another thread may have read what this one overwrites.
    tl.debug_barrier()
    tl.store(states + places * CHANNELS + columns, tl.where(is_old, old, new), mask=mask)


@triton.jit(do_not_specialize=["num_spans"])
def _convolve_tile_kernel(
    x_ptr, weight_ptr, bias_ptr, state_ptr, slot_ptr, is_first_ptr, bound_ptr, out_ptr, stride_x, num_spans,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    CHUNK: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
):  # fmt: skip
    """Only the program of a span's first tokens reads and writes its state: inputs themselves are never replaced, so
    the span's last ones are there for it."""
    chunk = tl.program_id(0).to(tl.int64)
    span, begin, end, first_chunk = bounds_of(bound_ptr, span_of_chunk(bound_ptr, chunk, num_spans))
    columns = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    is_channel = columns < CHANNELS
    tokens = (begin + (chunk - first_chunk) * CHUNK + tl.arange(0, CHUNK))[:, None]
    mask = (tokens < end) & is_channel
    total = tl.zeros([CHUNK, BLOCK], tl.float32)
    if chunk == first_chunk:
        states = state_ptr + tl.load(slot_ptr + span) * (WIDTH - 1) * CHANNELS
        is_known = tl.load(is_first_ptr + span) == 0
        is_seen = mask & is_known
        total = _convolve_state(states, weight_ptr, tokens - begin, is_seen, columns, total, CHANNELS, WIDTH)
        _replace_state(x_ptr, states, begin, end, stride_x, is_known, columns, CHANNELS, WIDTH, BLOCK_WIDTH)
    for tap in tl.static_range(WIDTH):
        inputs = tokens - (WIDTH - 1 - tap)
        x = tl.load(x_ptr + inputs * stride_x + columns, mask=mask & (inputs >= begin), other=0.0)
        weight = tl.load(weight_ptr + columns * WIDTH + tap, mask=is_channel, other=0.0)
        total += x.to(tl.float32) * weight.to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_channel, other=0.0).to(tl.float32)
    if HAS_SILU:
        total *= tl.sigmoid(total)
    tl.store(out_ptr + tokens * CHANNELS + columns, total.to(out_ptr.dtype.element_ty), mask=mask)


def causal_conv_in_chunks(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of spans of several tokens, behind which no states are kept."""
    # Chunks have as many tokens as those of other ops: layers share the bounds.
    found = spans.long_spans(CHUNK)
    if found is None:
        return
    num_channels, width = weight.shape
    block = min(_BLOCK, triton.next_power_of_2(num_channels))
    _convolve_tile_kernel[(found.num_chunks, triton.cdiv(num_channels, block))](
        x,
        weight,
        weight if bias is None else bias,
        state,
        spans.slots,
        spans.is_first,
        found.bounds,
        out,
        x.stride(0),
        len(found.bounds),
        CHANNELS=num_channels,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        BLOCK=block,
        CHUNK=CHUNK,
        HAS_BIAS=bias is not None,
        HAS_SILU=silu,
        num_warps=4,
    )
