"""Computes how the tokens of a chunk act on each other where the rows of a matrix forget by themselves (KDA). What
is left of a row then stands within the product of two tokens, and is no factor of it:

    (key . keys before) left   becomes   sum over rows of key (key before) (left of this row since then)

What is left is at most 1 and is only multiplied, never divided: nothing overflows and no digits are lost, however much
is forgotten. Within a block of 16 tokens each pair has its own. For a token of the second block and one of the first it
is what the first leaves at the border times what is left since the border: one product of matrices.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.gpu.chunk_carry import padded_keys
from penstock_kernels.gpu.recurrent import bounded_step, chunk_at
from penstock_kernels.gpu.row_carry import ROW_CHUNK, carry_rows, row_work, store_halves
from penstock_kernels.gpu.split_product import split_product
from penstock_kernels.gpu.unit_triangle import BLOCK, diagonal_of, inverse_of


@triton.jit
def _near_pairs(query, key, key_ptr, step_ptr, bias, rate, tokens, end, stride_key, stride_step, min_step, max_step,
                KEY_DIM: tl.constexpr, BLOCK_KEY: tl.constexpr):  # fmt: skip
    """For both blocks, [2, BLOCK, ...]: queries by keys and keys by keys of the same block; what is left at each token
    since its block began, and of what it adds when the block ends; [2, BLOCK_KEY]: what is left of the whole block.

    Keys are taken from the last to the first. tokens: [2], the first of each block.
    """
    rows, places = tl.arange(0, BLOCK_KEY)[None, :], tl.arange(0, BLOCK)
    scores = tl.zeros([2, BLOCK, BLOCK], tl.float32)
    lower = tl.zeros([2, BLOCK, BLOCK], tl.float32)
    since = tl.full([2, BLOCK, BLOCK_KEY], 1.0, tl.float32)
    behind = tl.full([2, BLOCK, BLOCK_KEY], 1.0, tl.float32)
    whole = tl.full([2, BLOCK_KEY], 1.0, tl.float32)
    for turn in range(BLOCK):
        place = BLOCK - 1 - turn
        now = (tokens + place)[:, None]
        mask = (now < end) & (rows < KEY_DIM)
        step = tl.load(step_ptr + now * stride_step + rows, mask=mask, other=0.0).to(tl.float32) + bias
        left = tl.where(mask, tl.exp(-rate * bounded_step(step, min_step, max_step)), 1.0)
        its_key = tl.load(key_ptr + now * stride_key + rows, mask=mask, other=0.0).to(tl.float32)
        seen = since * its_key[:, None, :]
        is_column = places[None, None, :] == place
        scores = tl.where(is_column, tl.sum(query * seen, axis=2)[:, :, None], scores)
        lower = tl.where(is_column, tl.sum(key * seen, axis=2)[:, :, None], lower)
        is_later = places[None, :, None] >= place
        since = tl.where(is_later, since * left[:, None, :], 1.0)
        behind = tl.where(is_later, behind, behind * left[:, None, :])
        whole *= left
    return scores, lower, since, behind, whole


@triton.jit
def _far_pairs(left, key, CHUNK: tl.constexpr):
    """Products of tokens of the second block by keys of the first; both times what is left at the border or since."""
    places = tl.arange(0, CHUNK)
    is_far = (places >= BLOCK)[:, None] & (places < BLOCK)[None, :]
    return tl.where(is_far, split_product(left, tl.trans(key), tl.zeros([CHUNK, CHUNK], tl.float32)), 0.0)


@triton.jit
def _of_block(whole, NUMBER: tl.constexpr):
    """The factor that block NUMBER leaves of each row, for the tokens of the other block; 1 for its own tokens."""
    is_it = tl.arange(0, 2)[:, None] == NUMBER
    here = tl.arange(0, 2)[:, None, None] == NUMBER
    return tl.where(here, 1.0, tl.sum(tl.where(is_it, whole, 0.0), axis=0)[None, None, :])


@triton.jit
def _unit_rows(x):
    """Rows scaled to length 1: [2, BLOCK, BLOCK_KEY]."""
    return x * tl.rsqrt(tl.sum(x * x, axis=2) + 1e-6)[:, :, None]


@triton.jit
def _store_tokens(
    asker_ptr,
    key_ptr,
    left_ptr,
    query,
    key,
    since,
    behind,
    whole,
    CHUNK: tl.constexpr,
    BLOCK_KEY: tl.constexpr,
):
    """Keys and queries times what is left for them since the chunk began, keys times what is left when it ends."""
    TILE: tl.constexpr = CHUNK * BLOCK_KEY
    since *= _of_block(whole, 0)
    store_halves(asker_ptr, tl.reshape(key * since, [CHUNK, BLOCK_KEY]), 2 * TILE, CHUNK, BLOCK_KEY)
    store_halves(asker_ptr + TILE, tl.reshape(query * since, [CHUNK, BLOCK_KEY]), 2 * TILE, CHUNK, BLOCK_KEY)
    behind *= _of_block(whole, 1)
    store_halves(key_ptr, tl.reshape(key * behind, [CHUNK, BLOCK_KEY]), TILE, CHUNK, BLOCK_KEY)
    is_first = tl.arange(0, 2)[:, None] == 0
    left = tl.sum(tl.where(is_first, whole, 0.0), axis=0) * tl.sum(tl.where(is_first, 0.0, whole), axis=0)
    tl.store(left_ptr + tl.arange(0, BLOCK_KEY), left)


@triton.jit
def _store_squares(square_ptr, scores, lower, beta, CHUNK: tl.constexpr):
    """The system, and behind it the scores times it."""
    places = tl.arange(0, CHUNK)
    before = places[:, None] - places[None, :]
    system = inverse_of(tl.where(before > 0, lower * beta[:, None], 0.0), CHUNK) * beta[None, :]
    scores = tl.where(before >= 0, scores, 0.0)
    store_halves(square_ptr, system, 2 * CHUNK * CHUNK, CHUNK, CHUNK)
    both = split_product(scores, system, tl.zeros([CHUNK, CHUNK], tl.float32))
    store_halves(square_ptr + CHUNK * CHUNK, both, 2 * CHUNK * CHUNK, CHUNK, CHUNK)


@triton.jit(do_not_specialize=["num_spans"])
def _row_pair_kernel(
    query_ptr, key_ptr, step_ptr, beta_ptr, log_rate_ptr, step_bias_ptr, bound_ptr,
    asker_ptr, square_ptr, end_key_ptr, left_ptr,
    stride_query, stride_key, stride_step, stride_beta, num_spans, scale, min_step, max_step,
    NUM_HEADS: tl.constexpr, COPIES: tl.constexpr, KEY_DIM: tl.constexpr, BLOCK_KEY: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Computes how the tokens of one chunk act on each other, for one head."""
    chunk, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    begin, end = chunk_at(bound_ptr, chunk, num_spans, CHUNK)
    rows, firsts = tl.arange(0, BLOCK_KEY), begin + tl.arange(0, 2) * BLOCK
    tokens = firsts[:, None, None] + tl.arange(0, BLOCK)[None, :, None]
    mask = (tokens < end) & (rows < KEY_DIM)[None, None, :]
    key_ptr += head // COPIES * KEY_DIM
    queries = query_ptr + head // COPIES * KEY_DIM + tokens * stride_query + rows[None, None, :]
    key = tl.load(key_ptr + tokens * stride_key + rows[None, None, :], mask=mask, other=0.0).to(tl.float32)
    query = _unit_rows(tl.load(queries, mask=mask, other=0.0).to(tl.float32)) * scale
    of_key = tl.reshape(tl.rsqrt(tl.sum(key * key, axis=2) + 1e-6), [CHUNK])[None, :]
    key = _unit_rows(key)
    bias = tl.load(step_bias_ptr + head * KEY_DIM + rows, mask=rows < KEY_DIM, other=0.0)[None, :]
    rate = tl.exp(tl.load(log_rate_ptr + head))
    scores, lower, since, behind, whole = _near_pairs(
        query, key, key_ptr, step_ptr + head * KEY_DIM, bias, rate, firsts, end, stride_key, stride_step,
        min_step, max_step, KEY_DIM, BLOCK_KEY,
    )  # fmt: skip
    to_border = tl.where(tl.arange(0, 2)[:, None, None] == 1, since, behind)
    far_key = tl.reshape(key * to_border, [CHUNK, BLOCK_KEY])
    far_query = tl.reshape(query * to_border, [CHUNK, BLOCK_KEY])
    place = chunk * NUM_HEADS + head
    _store_tokens(asker_ptr + place * 4 * CHUNK * BLOCK_KEY, end_key_ptr + place * 2 * CHUNK * BLOCK_KEY,
                  left_ptr + place * BLOCK_KEY, query, key, since, behind, whole, CHUNK, BLOCK_KEY)  # fmt: skip
    scores = diagonal_of(scores, CHUNK) * of_key + _far_pairs(far_query, far_key, CHUNK)
    lower = diagonal_of(lower, CHUNK) * of_key + _far_pairs(far_key, far_key, CHUNK)
    of_token = begin + tl.arange(0, CHUNK)
    beta = tl.load(beta_ptr + of_token * stride_beta + head, mask=of_token < end, other=0.0).to(tl.float32)
    beta = tl.where(of_token < end, tl.sigmoid(beta), 0.0)
    _store_squares(square_ptr + place * 4 * CHUNK * CHUNK, scores, lower, beta, CHUNK)


def row_delta_rule_in_chunks(
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
    most 128 numbers. `step`: [num_tokens, num_heads, key_dim]."""
    found = spans.long_spans(ROW_CHUNK)
    if found is None:
        return
    num_heads, key_dim = step.shape[1:]
    padded = padded_keys(key_dim)
    work = row_work(found, num_heads, padded, key.device)
    _row_pair_kernel[(found.num_chunks, num_heads)](
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
        BLOCK_KEY=padded,
        CHUNK=ROW_CHUNK,
        # No kind of device spills with these, with any Triton: for keys of 32 numbers both 4 and 8 spill on some, for
        # shorter ones on sm_80.
        num_warps={16: 16, 32: 2}.get(padded, 8),
    )
    carry_rows(value, work, state, spans, found.bounds, out)
