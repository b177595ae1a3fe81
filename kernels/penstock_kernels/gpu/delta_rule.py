"""The gated delta rule of one token of each sequence, and of those that are drafted behind it: some columns of a head's
matrix are read once, corrected and asked, and written. Longer spans beside them are computed in chunks."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.delta_chunks import delta_rule_in_chunks
from penstock_kernels.gpu.recurrent import bounded_step, run_length, singles_of
from penstock_kernels.gpu.row_chunks import row_delta_rule_in_chunks

# Columns of a program: rows of 128 bytes are read, and one sequence of 32 heads of 128 fills 128 programs. Unmeasured.
_COLUMNS = 32


@triton.jit
def _unit(ptr, rows, mask, scale):
    """A row of length 1, times `scale`."""
    x = tl.load(ptr + rows, mask=mask, other=0.0).to(tl.float32)
    return x * (tl.rsqrt(tl.sum(x * x, axis=0) + 1e-6) * scale)


@triton.jit(do_not_specialize_on_alignment=["row_ptr"])
def _correct_one_kernel(
    query_ptr, key_ptr, value_ptr, step_ptr, beta_ptr, log_rate_ptr, step_bias_ptr, state_ptr,
    slot_ptr, is_first_ptr, row_ptr, kept_ptr, out_ptr,
    stride_query, stride_key, stride_value, stride_step, stride_beta, scale, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    BLOCK_KEY: tl.constexpr, BLOCK_VALUE: tl.constexpr, BY_ROW: tl.constexpr, KEEPS: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    span, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, columns = tl.arange(0, BLOCK_KEY), tl.program_id(2) * BLOCK_VALUE + tl.arange(0, BLOCK_VALUE)
    is_row, is_column = rows < KEY_DIM, columns < VALUE_DIM
    mask = is_row[:, None] & is_column[None, :]
    row_size = NUM_HEADS * KEY_DIM * VALUE_DIM
    places = head * KEY_DIM * VALUE_DIM + rows[:, None] * VALUE_DIM + columns[None, :]
    length = run_length(slot_ptr, span, KEEPS)
    mask = mask & (length > 0)
    numbers = state_ptr + tl.load(slot_ptr + span) * row_size + places
    state = tl.load(numbers, mask=mask & (tl.load(is_first_ptr + span) == 0), other=0.0)
    rate = tl.exp(tl.load(log_rate_ptr + head))
    key_head, of_head = head // COPIES * KEY_DIM, head * VALUE_DIM + columns
    first = tl.load(row_ptr + span) if APART else span
    for token in range(first, first + length):
        if BY_ROW:
            of_row = head * KEY_DIM + rows
            step = tl.load(step_ptr + token * stride_step + of_row, mask=is_row, other=0.0).to(tl.float32)
            step += tl.load(step_bias_ptr + of_row, mask=is_row, other=0.0)
            state *= tl.exp(-rate * bounded_step(step, min_step, max_step))[:, None]
        else:
            step = tl.load(step_ptr + token * stride_step + head).to(tl.float32) + tl.load(
                step_bias_ptr + head
            )
            state *= tl.exp(-rate * bounded_step(step, min_step, max_step))
        key = _unit(key_ptr + token * stride_key + key_head, rows, is_row, 1.0)
        query = _unit(query_ptr + token * stride_query + key_head, rows, is_row, scale)
        value = tl.load(value_ptr + token * stride_value + of_head, mask=is_column, other=0.0).to(tl.float32)
        beta = tl.sigmoid(tl.load(beta_ptr + token * stride_beta + head).to(tl.float32))
        change = (value - tl.sum(state * key[:, None], axis=0)) * beta
        state += key[:, None] * change[None, :]
        found = tl.sum(state * query[:, None], axis=0).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + token * NUM_HEADS * VALUE_DIM + of_head, found, mask=is_column)
        if KEEPS:
            kept = tl.load(kept_ptr + token)
            tl.store(state_ptr + kept * row_size + places, state, mask=mask & (kept >= 0))
    tl.store(numbers, state, mask=mask)


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    out = torch.empty(value.shape, dtype=value.dtype, device=value.device)
    if out.numel() == 0:
        return out
    _correct_singles(query, key, value, step, beta, decay, state, spans, out)
    compute = row_delta_rule_in_chunks if step.dim() == 3 else delta_rule_in_chunks
    compute(query, key, value, step, beta, decay, state, spans, out)
    return out


def _correct_singles(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
    out: torch.Tensor,
) -> None:
    """Fills the rows of `out` that are of spans of one token."""
    singles = singles_of(spans)
    if singles is None:
        return
    (_, num_heads, value_dim), key_dim = value.shape, key.shape[2]
    block = min(_COLUMNS, triton.next_power_of_2(value_dim))
    _correct_one_kernel[(len(singles.slots), num_heads, triton.cdiv(value_dim, block))](
        query,
        key,
        value,
        step,
        beta,
        decay.log_rate,
        decay.step_bias,
        state,
        singles.slots,
        singles.is_first,
        singles.rows,
        singles.slots if spans.kept is None else spans.kept,
        out,
        *(part.stride(0) for part in (query, key, value, step, beta)),
        key_dim**-0.5,
        decay.min_step,
        decay.max_step,
        NUM_HEADS=num_heads,
        COPIES=num_heads // key.shape[1],
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        BLOCK_KEY=triton.next_power_of_2(key_dim),
        BLOCK_VALUE=block,
        BY_ROW=step.dim() == 3,
        KEEPS=spans.kept is not None,
        APART=not spans.are_single,
        num_warps=4,
    )
