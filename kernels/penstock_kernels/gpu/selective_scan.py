"""The state space of Mamba-1, token after token: the states of some channels stay in registers for all tokens of a
span."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.recurrent import run_length, softplus

# Numbers of a program: 16 per thread at 4 warps. Unmeasured.
_TILE = 2048


@triton.jit
def _select_kernel(
    x_ptr, step_ptr, step_bias_ptr, rate_ptr, inward_ptr, outward_ptr, skip_ptr, state_ptr,
    slot_ptr, is_first_ptr, start_ptr, kept_ptr, out_ptr, stride_x, stride_step, stride_inward, stride_outward,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SINGLE: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    span = tl.program_id(0).to(tl.int64)
    rows, columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BLOCK_SIZE)
    is_row, is_column = rows < CHANNELS, columns < SIZE
    mask = is_row[:, None] & is_column[None, :]
    places = rows[:, None] * SIZE + columns[None, :]
    if SINGLE:
        begin, end = span, span + run_length(slot_ptr, span, KEEPS)
    else:
        begin, end = tl.load(start_ptr + span), tl.load(start_ptr + span + 1)
    is_kept = mask & (begin < end)
    numbers = state_ptr + tl.load(slot_ptr + span) * CHANNELS * SIZE + places
    state = tl.load(numbers, mask=is_kept & (tl.load(is_first_ptr + span) == 0), other=0.0)
    step_bias = tl.load(step_bias_ptr + rows, mask=is_row, other=0.0)
    rate = tl.load(rate_ptr + places, mask=mask, other=0.0)
    skip = tl.load(skip_ptr + rows, mask=is_row, other=0.0)
    for token in range(begin, end):
        step = tl.load(step_ptr + token * stride_step + rows, mask=is_row, other=0.0).to(tl.float32)
        step = softplus(step + step_bias)
        x = tl.load(x_ptr + token * stride_x + rows, mask=is_row, other=0.0).to(tl.float32)
        inward = tl.load(inward_ptr + token * stride_inward + columns, mask=is_column, other=0.0)
        outward = tl.load(outward_ptr + token * stride_outward + columns, mask=is_column, other=0.0)
        state = state * tl.exp(-step[:, None] * rate) + (x * step)[:, None] * inward.to(tl.float32)[None, :]
        found = tl.sum(state * outward.to(tl.float32)[None, :], axis=1) + x * skip
        tl.store(out_ptr + token * CHANNELS + rows, found.to(out_ptr.dtype.element_ty), mask=is_row)
        if KEEPS:
            kept = tl.load(kept_ptr + token)
            tl.store(state_ptr + kept * CHANNELS * SIZE + places, state, mask=mask & (kept >= 0))
    tl.store(numbers, state, mask=is_kept)


def selective_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    step_bias: torch.Tensor,
    rate: torch.Tensor,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    num_channels, size = rate.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    block_size = triton.next_power_of_2(size)
    block = min(max(_TILE // block_size, 1), triton.next_power_of_2(num_channels))
    _select_kernel[(len(spans.query_lens), triton.cdiv(num_channels, block))](
        x,
        step,
        step_bias,
        rate,
        inward,
        outward,
        skip,
        state,
        spans.slots,
        spans.is_first,
        spans.slots if spans.are_single else spans.starts(),
        spans.slots if spans.kept is None else spans.kept,
        out,
        *(part.stride(0) for part in (x, step, inward, outward)),
        CHANNELS=num_channels,
        SIZE=size,
        BLOCK=block,
        BLOCK_SIZE=block_size,
        SINGLE=spans.are_single,
        KEEPS=spans.kept is not None,
        num_warps=4,
    )
    return out
