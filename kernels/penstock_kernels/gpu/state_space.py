"""The state space of Mamba-2 for one token of each sequence, and for those that are drafted behind it: some rows of a
head's matrix are read once, changed and asked, and written. Longer spans beside them are computed in chunks."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.recurrent import bounded_step, run_length, singles_of
from penstock_kernels.gpu.space_chunks import state_space_in_chunks

# Numbers of a program: 32 per thread at 4 warps. Unmeasured.
_TILE = 4096


@triton.jit(do_not_specialize_on_alignment=["row_ptr"])
def _scan_one_kernel(
    x_ptr, step_ptr, inward_ptr, outward_ptr, log_rate_ptr, step_bias_ptr, skip_ptr, state_ptr,
    slot_ptr, is_first_ptr, row_ptr, kept_ptr, out_ptr,
    stride_x, stride_step, stride_inward, stride_outward, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr,
    BLOCK_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEEPS: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, columns = tl.program_id(2) * BLOCK_DIM + tl.arange(0, BLOCK_DIM), tl.arange(0, BLOCK_SIZE)
    is_row, is_column = rows < DIM, columns < SIZE
    mask = is_row[:, None] & is_column[None, :]
    row_size = NUM_HEADS * DIM * SIZE
    places = head * DIM * SIZE + rows[:, None] * SIZE + columns[None, :]
    length = run_length(slot_ptr, span, KEEPS)
    mask = mask & (length > 0)
    numbers = state_ptr + tl.load(slot_ptr + span) * row_size + places
    state = tl.load(numbers, mask=mask & (tl.load(is_first_ptr + span) == 0), other=0.0)
    group, of_head = head // COPIES * SIZE, head * DIM + rows
    first = tl.load(row_ptr + span) if APART else span
    for token in range(first, first + length):
        step = tl.load(step_ptr + token * stride_step + head).to(tl.float32) + tl.load(step_bias_ptr + head)
        step = bounded_step(step, min_step, max_step)
        x = tl.load(x_ptr + token * stride_x + of_head, mask=is_row, other=0.0).to(tl.float32)
        inward = tl.load(inward_ptr + token * stride_inward + group + columns, mask=is_column, other=0.0)
        outward = tl.load(outward_ptr + token * stride_outward + group + columns, mask=is_column, other=0.0)
        state *= tl.exp(-tl.exp(tl.load(log_rate_ptr + head)) * step)
        state += (x * step)[:, None] * inward.to(tl.float32)[None, :]
        found = tl.sum(state * outward.to(tl.float32)[None, :], axis=1) + x * tl.load(skip_ptr + head)
        target = out_ptr + token * NUM_HEADS * DIM + of_head
        tl.store(target, found.to(out_ptr.dtype.element_ty), mask=is_row)
        if KEEPS:
            kept = tl.load(kept_ptr + token)
            tl.store(state_ptr + kept * row_size + places, state, mask=mask & (kept >= 0))
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
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out
    _scan_singles(x, step, decay, inward, outward, skip, state, spans, out)
    state_space_in_chunks(x, step, decay, inward, outward, skip, state, spans, out)
    return out


def _scan_singles(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of spans of one token."""
    singles = singles_of(spans)
    if singles is None:
        return
    (_, num_heads, dim), size = x.shape, inward.shape[2]
    block_size = triton.next_power_of_2(size)
    block_dim = min(max(_TILE // block_size, 1), triton.next_power_of_2(dim))
    _scan_one_kernel[(len(singles.slots), num_heads, triton.cdiv(dim, block_dim))](
        x,
        step,
        inward,
        outward,
        decay.log_rate,
        decay.step_bias,
        skip,
        state,
        singles.slots,
        singles.is_first,
        singles.rows,
        singles.slots if spans.kept is None else spans.kept,
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
        KEEPS=spans.kept is not None,
        APART=not spans.are_single,
        num_warps=4,
    )
