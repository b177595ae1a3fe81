"""The state space of Mamba-2 for one token of each sequence: some rows of a head's matrix are read, changed, asked and
written, once."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.recurrent import bounded_step

# Numbers of a program: 32 per thread at 4 warps. Unmeasured.
_TILE = 4096


@triton.jit
def _scan_one_kernel(
    x_ptr, step_ptr, inward_ptr, outward_ptr, log_rate_ptr, step_bias_ptr, skip_ptr, state_ptr,
    slot_ptr, is_first_ptr, out_ptr,
    stride_x, stride_step, stride_inward, stride_outward, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(2) * BLOCK_DIM + tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_SIZE)
    is_row, is_column = rows < DIM, columns < SIZE
    mask = is_row[:, None] & is_column[None, :]
    matrix = state_ptr + (tl.load(slot_ptr + span) * NUM_HEADS + head) * DIM * SIZE
    numbers = matrix + rows[:, None] * SIZE + columns[None, :]
    state = tl.load(numbers, mask=mask & (tl.load(is_first_ptr + span) == 0), other=0.0)
    step = tl.load(step_ptr + span * stride_step + head).to(tl.float32) + tl.load(step_bias_ptr + head)
    step = bounded_step(step, min_step, max_step)
    group, of_head = head // COPIES * SIZE, head * DIM + rows
    x = tl.load(x_ptr + span * stride_x + of_head, mask=is_row, other=0.0).to(tl.float32)
    inward = tl.load(inward_ptr + span * stride_inward + group + columns, mask=is_column, other=0.0)
    outward = tl.load(outward_ptr + span * stride_outward + group + columns, mask=is_column, other=0.0)
    state *= tl.exp(-tl.exp(tl.load(log_rate_ptr + head)) * step)
    state += (x * step)[:, None] * inward.to(tl.float32)[None, :]
    found = tl.sum(state * outward.to(tl.float32)[None, :], axis=1) + x * tl.load(skip_ptr + head)
    target = out_ptr + span * NUM_HEADS * DIM + of_head
    tl.store(target, found.to(out_ptr.dtype.element_ty), mask=is_row)
    tl.store(numbers, state, mask=mask)


def state_space_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    (num_tokens, num_heads, dim), size = x.shape, inward.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    block_size = triton.next_power_of_2(size)
    block_dim = min(max(_TILE // block_size, 1), triton.next_power_of_2(dim))
    _scan_one_kernel[(num_tokens, num_heads, triton.cdiv(dim, block_dim))](
        x,
        step,
        inward,
        outward,
        decay.log_rate,
        decay.step_bias,
        skip,
        state,
        spans.slots,
        spans.is_first,
        out,
        *(part.stride(0) for part in (x, step, inward, outward)),
        decay.min_step,
        decay.max_step,
        NUM_HEADS=num_heads,
        COPIES=num_heads // inward.shape[1],
        DIM=dim,
        SIZE=size,
        BLOCK_DIM=block_dim,
        BLOCK_SIZE=block_size,
        num_warps=4,
    )
    return out
