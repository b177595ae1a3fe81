"""A short convolution of one token of each sequence, and of those that are drafted behind it: its last inputs and its
own are one tile, the next state. Longer spans beside them are computed in tiles of many tokens."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.conv_chunks import causal_conv_in_chunks
from penstock_kernels.gpu.recurrent import run_length, singles_of

# Channels of a program: 2 per thread at 4 warps. Unmeasured.
_BLOCK = 256


@triton.jit(do_not_specialize_on_alignment=["row_ptr"])
def _convolve_one_kernel(
    x_ptr, weight_ptr, bias_ptr, state_ptr, slot_ptr, is_first_ptr, row_ptr, kept_ptr, out_ptr, stride_x,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr, KEEPS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0).to(tl.int64)
    columns, taps = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_WIDTH)
    is_channel, is_tap = columns < CHANNELS, taps < WIDTH
    mask = is_tap[:, None] & is_channel[None, :]
    is_known = mask & (tl.load(is_first_ptr + span) == 0)
    row_size = (WIDTH - 1) * CHANNELS
    states = state_ptr + tl.load(slot_ptr + span) * row_size
    weight = tl.load(weight_ptr + columns[None, :] * WIDTH + taps[:, None], mask=mask, other=0.0)
    last = (taps[:, None] - 1) * CHANNELS + columns[None, :]
    is_last = mask & (taps > 0)[:, None]
    length = run_length(slot_ptr, span, KEEPS)
    first = tl.load(row_ptr + span) if APART else span
    for number in range(length):
        # Inputs of this step from `WIDTH - 1 - number` on, before these the last ones of the state.
        inputs, kept_inputs = taps + number - (WIDTH - 1), taps + number
        known = tl.load(
            states + kept_inputs[:, None] * CHANNELS + columns[None, :],
            mask=is_known & (inputs < 0)[:, None],
            other=0.0,
        )
        x = tl.load(
            x_ptr + (first + inputs[:, None]) * stride_x + columns[None, :],
            mask=mask & (inputs >= 0)[:, None],
            other=0.0,
        )
        seen = tl.where((inputs < 0)[:, None], known, x)
        found = tl.sum(seen.to(tl.float32) * weight.to(tl.float32), axis=0)
        if HAS_BIAS:
            found += tl.load(bias_ptr + columns, mask=is_channel, other=0.0).to(tl.float32)
        if HAS_SILU:
            found *= tl.sigmoid(found)
        target = out_ptr + (first + number) * CHANNELS + columns
        tl.store(target, found.to(out_ptr.dtype.element_ty), mask=is_channel)
        seen = seen.to(state_ptr.dtype.element_ty)
        if KEEPS:
            kept = tl.load(kept_ptr + first + number)
            tl.store(state_ptr + kept * row_size + last, seen, mask=is_last & (kept >= 0))
        # Another thread may have read what this one overwrites.
        tl.debug_barrier()
        tl.store(states + last, seen, mask=is_last & (number == length - 1))


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    _convolve_singles(x, weight, bias, state, spans, silu, out)
    causal_conv_in_chunks(x, weight, bias, state, spans, silu, out)
    return out


def _convolve_singles(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of spans of one token."""
    singles = singles_of(spans)
    if singles is None:
        return
    num_channels, width = weight.shape
    block = min(_BLOCK, triton.next_power_of_2(num_channels))
    _convolve_one_kernel[(len(singles.slots), triton.cdiv(num_channels, block))](
        x,
        weight,
        weight if bias is None else bias,
        state,
        singles.slots,
        singles.is_first,
        singles.rows,
        singles.slots if spans.kept is None else spans.kept,
        out,
        x.stride(0),
        CHANNELS=num_channels,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        BLOCK=block,
        HAS_BIAS=bias is not None,
        HAS_SILU=silu,
        KEEPS=spans.kept is not None,
        APART=not spans.are_single,
        num_warps=4,
    )
