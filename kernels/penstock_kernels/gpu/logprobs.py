"""Log probabilities of chosen tokens and of the most likely ones: one pass over the logits, and no sort of them."""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.results import Logprobs

# Logits of a program. Unmeasured.
_BLOCK = 2048
# How many of the most likely tokens the kernels look for: few variants, and Triton's topk of one does not compile.
_WIDTHS = (8, 32)


@triton.jit
def _pack(values, ids):
    """int64 in the order of the floats; of equal ones the smaller id is larger."""
    bits = values.to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (keys << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def _part_kernel(
    logits_ptr,
    largest_ptr,
    total_ptr,
    top_ptr,
    stride_row,
    vocab_size,
    NUM_TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest, the mass and the top tokens of one part of a row. A NaN or infinity makes the mass NaN."""
    row, part, num_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    is_real = ids < vocab_size
    logits = tl.load(logits_ptr + row * stride_row + ids, mask=is_real, other=float("-inf"))
    largest = tl.max(logits, axis=0)
    is_bad = (logits != logits) | (tl.abs(logits) == float("inf"))
    total = tl.sum(tl.exp(logits - largest), axis=0)
    num_bad = tl.sum((is_bad & is_real).to(tl.int32), axis=0)
    where = row * num_parts + part
    tl.store(largest_ptr + where, largest)
    tl.store(total_ptr + where, tl.where(num_bad > 0, float("nan"), total))
    if NUM_TOP > 0:
        top = tl.topk(_pack(logits, ids), NUM_TOP)
        tl.store(top_ptr + where * NUM_TOP + tl.arange(0, NUM_TOP), top)


@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=["token_ptr"])
def _join_kernel(
    logits_ptr,
    token_ptr,
    largest_ptr,
    total_ptr,
    top_ptr,
    logprob_ptr,
    finite_ptr,
    top_id_ptr,
    top_logprob_ptr,
    stride_row,
    num_parts,
    num_top,
    NUM_TOP: tl.constexpr,
    BLOCK_PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    parts = tl.arange(0, BLOCK_PARTS)
    part_largest = tl.load(largest_ptr + row * num_parts + parts, mask=parts < num_parts, other=float("-inf"))
    part_total = tl.load(total_ptr + row * num_parts + parts, mask=parts < num_parts, other=0.0)
    largest = tl.max(part_largest, axis=0)
    total = tl.sum(tl.where(parts < num_parts, part_total * tl.exp(part_largest - largest), 0.0), axis=0)
    normalizer = largest + tl.log(total)
    tl.store(finite_ptr + row, total == total)
    token = tl.load(token_ptr + row)
    tl.store(logprob_ptr + row, tl.load(logits_ptr + row * stride_row + token) - normalizer)
    if NUM_TOP > 0:
        candidates = tl.arange(0, BLOCK_PARTS * NUM_TOP)
        # Beyond the parts: the smallest number there is.
        packed = tl.load(
            top_ptr + row * num_parts * NUM_TOP + candidates,
            mask=candidates < num_parts * NUM_TOP,
            other=-9223372036854775808,
        )
        top = tl.topk(packed, NUM_TOP)
        ranks = tl.arange(0, NUM_TOP)
        keys = (top >> 32).to(tl.int32)
        values = tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)
        ids = 0x7FFFFFFF - (top & 0xFFFFFFFF)
        tl.store(top_id_ptr + row * num_top + ranks, ids, mask=ranks < num_top)
        tl.store(top_logprob_ptr + row * num_top + ranks, values - normalizer, mask=ranks < num_top)


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor | None, num_top: int) -> Logprobs:
    if token_ids is None:
        token_ids = logits.argmax(dim=-1)
    (num_rows, vocab_size), device = logits.shape, logits.device
    width = _width(num_top)
    block = max(min(_BLOCK, triton.next_power_of_2(vocab_size)), width)
    num_parts = triton.cdiv(vocab_size, block)
    largest, total = (
        torch.empty((num_rows, num_parts), dtype=torch.float32, device=device) for _ in range(2)
    )
    tops = torch.empty((num_rows, num_parts, width), dtype=torch.int64, device=device)
    chosen = torch.empty(num_rows, dtype=torch.float32, device=device)
    finite = torch.empty(num_rows, dtype=torch.bool, device=device)
    top_ids = torch.empty((num_rows, num_top), dtype=torch.int64, device=device)
    top_logprobs = torch.empty((num_rows, num_top), dtype=torch.float32, device=device)
    found = Logprobs(token_ids, chosen, finite, top_ids, top_logprobs)
    if num_rows == 0:
        return found
    _part_kernel[(num_rows, num_parts)](
        logits, largest, total, tops, logits.stride(0), vocab_size, NUM_TOP=width, BLOCK=block, num_warps=4
    )
    _join_kernel[(num_rows,)](
        logits,
        token_ids,
        largest,
        total,
        tops,
        chosen,
        finite,
        top_ids,
        top_logprobs,
        logits.stride(0),
        num_parts,
        num_top,
        NUM_TOP=width,
        BLOCK_PARTS=triton.next_power_of_2(num_parts),
        num_warps=4,
    )
    return found


def _width(num_top: int) -> int:
    """A power of two of at least num_top, and 0 for none."""
    if num_top == 0:
        return 0
    return next((width for width in _WIDTHS if num_top <= width), triton.next_power_of_2(num_top))
