"""A short convolution of one token of each sequence: its last inputs and its own are one tile, the next state."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import RecurrentSpans

# Channels of a program: 2 per thread at 4 warps. Unmeasured.
_BLOCK = 256


@triton.jit
def _convolve_one_kernel(
    x_ptr, weight_ptr, bias_ptr, state_ptr, slot_ptr, is_first_ptr, out_ptr, stride_x,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0).to(tl.int64)
    columns, taps = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_WIDTH)
    is_channel, is_tap = columns < CHANNELS, taps < WIDTH
    mask = is_tap[:, None] & is_channel[None, :]
    is_known = mask & (taps < WIDTH - 1)[:, None] & (tl.load(is_first_ptr + span) == 0)
    states = state_ptr + tl.load(slot_ptr + span) * (WIDTH - 1) * CHANNELS
    known = tl.load(states + taps[:, None] * CHANNELS + columns[None, :], mask=is_known, other=0.0)
    x = tl.load(x_ptr + span * stride_x + columns, mask=is_channel, other=0.0)
    seen = tl.where((taps == WIDTH - 1)[:, None], x[None, :], known)
    weight = tl.load(weight_ptr + columns[None, :] * WIDTH + taps[:, None], mask=mask, other=0.0)
    found = tl.sum(seen.to(tl.float32) * weight.to(tl.float32), axis=0)
    if HAS_BIAS:
        found += tl.load(bias_ptr + columns, mask=is_channel, other=0.0).to(tl.float32)
    if HAS_SILU:
        found *= tl.sigmoid(found)
    tl.store(out_ptr + span * CHANNELS + columns, found.to(out_ptr.dtype.element_ty), mask=is_channel)
    # Another thread may have read what this one overwrites.
    tl.debug_barrier()
    before = states + (taps[:, None] - 1) * CHANNELS + columns[None, :]
    tl.store(before, seen.to(state_ptr.dtype.element_ty), mask=mask & (taps > 0)[:, None])


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
) -> torch.Tensor:
    (num_tokens, num_channels), width = x.shape, weight.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    block = min(_BLOCK, triton.next_power_of_2(num_channels))
    _convolve_one_kernel[(num_tokens, triton.cdiv(num_channels, block))](
        x,
        weight,
        weight if bias is None else bias,
        state,
        spans.slots,
        spans.is_first,
        out,
        x.stride(0),
        CHANNELS=num_channels,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        BLOCK=block,
        HAS_BIAS=bias is not None,
        HAS_SILU=silu,
        num_warps=4,
    )
    return out
