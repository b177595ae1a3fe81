"""The gated delta rule of spans of several tokens, in chunks: what tokens of one chunk change for each other is a
triangular system, which is solved for all chunks side by side. Then each span's state goes from chunk to chunk.

The change of a token is beta (value - S^T key), where S has what the tokens before it changed. With `left` as what is
left since then, of a chunk that begins with S0:

    change + beta (key . keys before) left change = beta (value - left S0^T key)
    system = (1 + beta (key . keys before) left)^-1 beta
    scores = (query . keys up to it) left

Keys and queries are multiplied as they are given; their lengths are factors of rows and columns.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.chunk_carry import CHUNK, carry, chunk_work, padded_keys, store_square
from penstock_kernels.gpu.recurrent import bounded_step, chunk_at
from penstock_kernels.gpu.unit_triangle import inverse_of


@triton.jit
def _inverse_lengths(x):
    """1 / the length of each row, by which it is normalised to length 1."""
    x = x.to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, axis=1) + 1e-6)


@triton.jit(do_not_specialize=["num_spans"])
def _pair_kernel(
    query_ptr, key_ptr, step_ptr, beta_ptr, log_rate_ptr, step_bias_ptr, bound_ptr, square_ptr, factor_ptr,
    stride_query, stride_key, stride_step, stride_beta, num_spans, scale, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_KEY: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Computes how the tokens of a chunk act on each other, for one head: one program computes the system,
    another the scores."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(bound_ptr, chunk, num_spans, CHUNK)
    places = tl.arange(0, CHUNK)
    tokens, is_token = begin + places, begin + places < end
    step = tl.load(step_ptr + tokens * stride_step + head, mask=is_token, other=0.0).to(tl.float32)
    step = bounded_step(step + tl.load(step_bias_ptr + head), min_step, max_step)
    left = tl.where(is_token, -tl.exp(tl.load(log_rate_ptr + head)) * step, 0.0)
    total = tl.cumsum(left, axis=0)

    columns = tl.arange(0, BLOCK_KEY)
    mask = is_token[:, None] & (columns < KEY_DIM)[None, :]
    of_head = head // COPIES * KEY_DIM + columns[None, :]
    key = tl.load(key_ptr + tokens[:, None] * stride_key + of_head, mask=mask, other=0.0)
    of_key = _inverse_lengths(key)
    seen = places[:, None] >= places[None, :]
    between = tl.exp(tl.where(seen, total[:, None] - total[None, :], float("-inf"))) * of_key[None, :]
    square_ptr += (chunk * NUM_HEADS + head) * 4 * CHUNK * CHUNK
    factor_ptr += (chunk * NUM_HEADS + head) * 4 * CHUNK + places
    if tl.program_id(2) == 0:
        # Much is left of the last tokens: as a difference of large sums, it would lose its last digits.
        behind = tl.cumsum(left, axis=0, reverse=True) - left
        tl.store(factor_ptr + CHUNK, of_key * tl.exp(behind))
        tl.store(factor_ptr + 2 * CHUNK, tl.exp(tl.sum(left, axis=0)) + tl.zeros_like(total))
        tl.store(factor_ptr + 3 * CHUNK, of_key * tl.exp(total))
        beta = tl.load(beta_ptr + tokens * stride_beta + head, mask=is_token, other=0.0).to(tl.float32)
        beta = tl.where(is_token, tl.sigmoid(beta), 0.0)
        lower = tl.dot(key, tl.trans(key)) * between * (of_key * beta)[:, None]
        lower = tl.where(places[:, None] > places[None, :], lower, 0.0)
        store_square(square_ptr + 2 * CHUNK * CHUNK, inverse_of(lower, CHUNK) * beta[None, :], CHUNK)
    else:
        query = tl.load(query_ptr + tokens[:, None] * stride_query + of_head, mask=mask, other=0.0)
        of_query = _inverse_lengths(query) * scale
        scores = tl.dot(query, tl.trans(key)) * between * of_query[:, None]
        store_square(square_ptr, scores, CHUNK)
        tl.store(factor_ptr, of_query * tl.exp(total))


def delta_rule_in_chunks(
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
    """Fills the rows of `out` that are of spans of several tokens. All but decay and state is bfloat16, keys have at
    most 128 numbers, heads forget as a whole."""
    found = spans.long_spans(CHUNK)
    if found is None:
        return
    num_heads, key_dim = value.shape[1], key.shape[2]
    work = chunk_work(found, num_heads, True, value.device)
    _pair_kernel[(found.num_chunks, num_heads, 2)](
        query,
        key,
        step,
        beta,
        decay.log_rate,
        decay.step_bias,
        found.bounds,
        *work,
        *(part.stride(0) for part in (query, key, step, beta)),
        len(found.bounds),
        key_dim**-0.5,
        decay.min_step,
        decay.max_step,
        NUM_HEADS=num_heads,
        COPIES=num_heads // key.shape[1],
        KEY_DIM=key_dim,
        BLOCK_KEY=padded_keys(key_dim),
        CHUNK=CHUNK,
        num_warps=8,
    )
    carry(query, key, value, work, state, spans, found.bounds, out)
