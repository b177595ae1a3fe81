"""The state space of Mamba-2 of spans of several tokens, in chunks: inside a chunk a token reads what those before it
added as attention would, for all chunks side by side. Then each span's state goes from chunk to chunk.

What a token reads by is a query, what it writes by a key, and x a value. Its step is a factor of its key, and what
skips the state stands on the diagonal of the scores.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.chunk_carry import CHUNK, carry, chunk_work, padded_keys, store_square
from penstock_kernels.gpu.recurrent import bounded_step, chunk_at


@triton.jit(do_not_specialize=["num_spans"])
def _score_kernel(
    outward_ptr, inward_ptr, step_ptr, log_rate_ptr, step_bias_ptr, skip_ptr, bound_ptr, square_ptr, factor_ptr,
    stride_outward, stride_inward, stride_step, num_spans, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Computes how the tokens of a chunk act on each other, for one head."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(bound_ptr, chunk, num_spans, CHUNK)
    places = tl.arange(0, CHUNK)
    tokens, is_token = begin + places, begin + places < end
    step = tl.load(step_ptr + tokens * stride_step + head, mask=is_token, other=0.0).to(tl.float32)
    step = bounded_step(step + tl.load(step_bias_ptr + head), min_step, max_step)
    step = tl.where(is_token, step, 0.0)
    left = -tl.exp(tl.load(log_rate_ptr + head)) * step
    # Much is left of the last tokens: as a difference of large sums, it would lose its last digits.
    total, behind = tl.cumsum(left, axis=0), tl.cumsum(left, axis=0, reverse=True) - left
    factor_ptr += (chunk * NUM_HEADS + head) * 4 * CHUNK + places
    tl.store(factor_ptr, tl.exp(total))
    tl.store(factor_ptr + CHUNK, step * tl.exp(behind))
    tl.store(factor_ptr + 2 * CHUNK, tl.exp(tl.sum(left, axis=0)) + tl.zeros_like(total))

    columns = tl.arange(0, BLOCK_SIZE)
    mask = is_token[:, None] & (columns < SIZE)[None, :]
    group = head // COPIES * SIZE + columns[None, :]
    outward = tl.load(outward_ptr + tokens[:, None] * stride_outward + group, mask=mask, other=0.0)
    inward = tl.load(inward_ptr + tokens[:, None] * stride_inward + group, mask=mask, other=0.0)
    seen = places[:, None] >= places[None, :]
    between = tl.exp(tl.where(seen, total[:, None] - total[None, :], float("-inf"))) * step[None, :]
    scores = tl.dot(outward, tl.trans(inward)) * between
    scores += tl.where(places[:, None] == places[None, :], tl.load(skip_ptr + head), 0.0)
    store_square(square_ptr + (chunk * NUM_HEADS + head) * 2 * CHUNK * CHUNK, scores, CHUNK)


def state_space_in_chunks(
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
    """Fills the rows of `out` that are of spans of several tokens. All but decay, skip and state is bfloat16, and a
    state has at most 128 numbers for each of x."""
    found = spans.long_spans(CHUNK)
    if found is None:
        return
    num_heads, size = x.shape[1], inward.shape[2]
    work = chunk_work(found, num_heads, False, x.device)
    _score_kernel[(found.num_chunks, num_heads)](
        outward,
        inward,
        step,
        decay.log_rate,
        decay.step_bias,
        skip,
        found.bounds,
        *work,
        *(part.stride(0) for part in (outward, inward, step)),
        len(found.bounds),
        decay.min_step,
        decay.max_step,
        NUM_HEADS=num_heads,
        COPIES=num_heads // inward.shape[1],
        SIZE=size,
        BLOCK_SIZE=padded_keys(size),
        CHUNK=CHUNK,
        num_warps=8,
    )
    carry(outward, inward, x, work, state.mT, spans, found.bounds, out)
