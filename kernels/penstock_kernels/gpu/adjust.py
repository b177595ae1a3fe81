"""Penalties, bias, suppressed tokens and grammar masks over rows of scores."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.sampling_params import PenaltyParams

# Numbers of a program: 8 per thread at 4 warps. Unmeasured.
_BLOCK = 1024
# Far beyond any logit, far below overflow when two are added.
_LARGEST: tl.constexpr = tl.constexpr(1e37)
# A count's bit that says the token is in the sequence; the bits below count how often it was generated.
_SEEN: tl.constexpr = tl.constexpr(1 << 30)


@triton.jit(do_not_specialize_on_alignment=["slot_ptr", "length_ptr", "prompt_len_ptr"])
def _count_kernel(
    token_ptr, slot_ptr, length_ptr, prompt_len_ptr, count_ptr, stride_slot, vocab_size, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    positions = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = positions < tl.load(length_ptr + row)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    tokens = tl.load(token_ptr + slot * stride_slot + positions, mask=known, other=0)
    counts = count_ptr + row * vocab_size + tokens
    tl.atomic_or(counts, tl.full([BLOCK], _SEEN, tl.int32), mask=known)
    tl.atomic_add(counts, 1, mask=known & (positions >= tl.load(prompt_len_ptr + row)))


@triton.jit(do_not_specialize_on_alignment=["repetition_ptr", "frequency_ptr", "presence_ptr"])
def _penalize_kernel(
    score_ptr,
    count_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    stride_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = ids < vocab_size
    scores = tl.load(score_ptr + row * stride_row + ids, mask=mask, other=0.0)
    counted = tl.load(count_ptr + row * vocab_size + ids, mask=mask, other=0)
    times = (counted & (_SEEN - 1)).to(tl.float32)
    repetition = tl.load(repetition_ptr + row) + tl.zeros_like(scores)
    repeated = tl.where(scores > 0, tl.div_rn(scores, repetition), scores * repetition)
    repeated = tl.minimum(tl.maximum(repeated, -_LARGEST), _LARGEST)  # no infinity for the others to undo
    scores = tl.where((counted >= _SEEN) & (repetition != 1.0), repeated, scores)
    scores -= times * tl.load(frequency_ptr + row)
    scores -= tl.where(times > 0, tl.load(presence_ptr + row), 0.0)
    scores = tl.minimum(tl.maximum(scores, -_LARGEST), _LARGEST)
    tl.store(score_ptr + row * stride_row + ids, scores, mask=mask)


@triton.jit(
    do_not_specialize=["num_entries"], do_not_specialize_on_alignment=["row_ptr", "id_ptr", "value_ptr"]
)
def _bias_kernel(score_ptr, row_ptr, id_ptr, value_ptr, num_entries, stride_row, BLOCK: tl.constexpr):
    entries = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = entries < num_entries
    rows = tl.load(row_ptr + entries, mask=mask, other=0).to(tl.int64)
    ptrs = score_ptr + rows * stride_row + tl.load(id_ptr + entries, mask=mask, other=0)
    scores = tl.load(ptrs, mask=mask, other=0.0) + tl.load(value_ptr + entries, mask=mask, other=0.0)
    # Minus infinity is no bias but a ban, and stays.
    clamped = tl.minimum(tl.maximum(scores, -_LARGEST), _LARGEST)
    tl.store(ptrs, tl.where(scores == float("-inf"), scores, clamped), mask=mask)


@triton.jit(do_not_specialize=["num_words"], do_not_specialize_on_alignment=["row_ptr", "bits_ptr"])
def _mask_kernel(score_ptr, row_ptr, bits_ptr, stride_row, num_words, vocab_size, BLOCK: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    words = tl.load(bits_ptr + number * num_words + ids // 32, mask=ids // 32 < num_words, other=0)
    is_banned = ((words >> (ids % 32)) & 1) == 0
    row = tl.load(row_ptr + number).to(tl.int64)
    banned = tl.full([BLOCK], float("-inf"), tl.float32)
    tl.store(score_ptr + row * stride_row + ids, banned, mask=is_banned & (ids < vocab_size))


def penalize(scores: torch.Tensor, params: PenaltyParams, max_len: int) -> None:
    num_rows, vocab_size = scores.shape
    if num_rows == 0:
        return
    counts = torch.zeros((num_rows, vocab_size), dtype=torch.int32, device=scores.device)
    _count_kernel[(num_rows, triton.cdiv(max_len, _BLOCK))](
        params.tokens,
        params.slots,
        params.lengths,
        params.prompt_lens,
        counts,
        params.tokens.stride(0),
        vocab_size,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    _penalize_kernel[(num_rows, triton.cdiv(vocab_size, _BLOCK))](
        scores,
        counts,
        params.repetition,
        params.frequency,
        params.presence,
        scores.stride(0),
        vocab_size,
        BLOCK=_BLOCK,
        num_warps=4,
    )


def add_bias(scores: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    if rows.shape[0]:
        _bias_kernel[(triton.cdiv(rows.shape[0], 128),)](
            scores, rows, ids, values, rows.shape[0], scores.stride(0), BLOCK=128, num_warps=4
        )


def apply_bitmask(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    if rows.shape[0]:
        _mask_kernel[(rows.shape[0], triton.cdiv(scores.shape[1], _BLOCK))](
            scores, rows, bits, scores.stride(0), bits.shape[1], scores.shape[1], BLOCK=_BLOCK, num_warps=4
        )
