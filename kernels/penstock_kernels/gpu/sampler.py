"""Chooses tokens: one program per row, thresholds by search instead of a sort.

Truncation keeps what reaches a threshold, so the questions are "which is the largest threshold that k tokens reach" and
"... that tokens of mass p reach". Both are answered by narrowing an interval of float bits, four ways a pass, until one
token at most is left inside: about 8 passes over a row that stays in the cache. Sums run in a fixed order.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.sampling_params import DrawParams
from penstock_kernels.gpu.noise import gumbel_of, noise_key

# Numbers that a program holds at once. Unmeasured.
_BLOCK = 4096
_WARPS = 8

# Stages of the search, and what the values are that it compares.
_COUNT: tl.constexpr = tl.constexpr(0)
_MASS: tl.constexpr = tl.constexpr(1)
_TYPICAL: tl.constexpr = tl.constexpr(2)


@triton.jit
def _key_of(value):
    """int32 in the order of the floats."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value_of(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _load_scaled(scores_ptr, ids, vocab_size, largest, temperature):
    """Scores with the largest moved to 0, divided by the temperature."""
    scores = tl.load(scores_ptr + ids, mask=ids < vocab_size, other=float("-inf"))
    return tl.div_rn(scores - largest, temperature + tl.zeros_like(scores))


@triton.jit
def _compared(scaled, floor, log_total, entropy, STAGE: tl.constexpr):
    """What a stage compares with its threshold, and the weight that counts towards its target."""
    is_kept = scaled >= floor
    weights = tl.where(is_kept, tl.exp(scaled), 0.0)
    value = scaled
    if STAGE == _COUNT:
        weights = tl.where(scaled > float("-inf"), 1.0, 0.0)
    if STAGE == _TYPICAL:
        value = tl.where(
            is_kept & (scaled > float("-inf")), -tl.abs(log_total - scaled - entropy), float("-inf")
        )
    return value, weights


@triton.jit
def _search(scores_ptr, vocab_size, largest, temperature, floor, log_total, entropy, target,
            STAGE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest threshold that weights of at least `target` reach; minus infinity when all do not suffice."""
    low = -2139095041  # the key of minus infinity
    high = 1  # just above the key of 0, the largest value
    num_low = vocab_size
    num_high = 0
    while (high - low > 1) & (num_low - num_high > 1):
        step = tl.maximum((high - low) // 4, 1)
        first = low + step
        second = tl.minimum(low + 2 * step, high - 1)
        third = tl.minimum(low + 3 * step, high - 1)
        masses_1 = tl.zeros([BLOCK], tl.float32)
        masses_2 = tl.zeros([BLOCK], tl.float32)
        masses_3 = tl.zeros([BLOCK], tl.float32)
        counts_1 = tl.zeros([BLOCK], tl.int32)
        counts_2 = tl.zeros([BLOCK], tl.int32)
        counts_3 = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab_size, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            scaled = _load_scaled(scores_ptr, ids, vocab_size, largest, temperature)
            value, weights = _compared(scaled, floor, log_total, entropy, STAGE)
            keys = _key_of(value)
            masses_1 += tl.where(keys >= first, weights, 0.0)
            masses_2 += tl.where(keys >= second, weights, 0.0)
            masses_3 += tl.where(keys >= third, weights, 0.0)
            counts_1 += (keys >= first).to(tl.int32)
            counts_2 += (keys >= second).to(tl.int32)
            counts_3 += (keys >= third).to(tl.int32)
        reached_1 = tl.sum(masses_1, axis=0) >= target
        reached_2 = tl.sum(masses_2, axis=0) >= target
        reached_3 = tl.sum(masses_3, axis=0) >= target
        num_1, num_2, num_3 = tl.sum(counts_1, axis=0), tl.sum(counts_2, axis=0), tl.sum(counts_3, axis=0)
        high = tl.where(reached_3, high, tl.where(reached_2, third, tl.where(reached_1, second, first)))
        num_high = tl.where(
            reached_3, num_high, tl.where(reached_2, num_3, tl.where(reached_1, num_2, num_1))
        )
        low = tl.where(reached_3, third, tl.where(reached_2, second, tl.where(reached_1, first, low)))
        num_low = tl.where(reached_3, num_3, tl.where(reached_2, num_2, tl.where(reached_1, num_1, num_low)))
    return _value_of(low)


@triton.jit
def _total_and_entropy(scores_ptr, vocab_size, largest, temperature, floor, BLOCK: tl.constexpr):
    """Mass of what is kept, and its entropy in nats."""
    masses = tl.zeros([BLOCK], tl.float32)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        scaled = _load_scaled(scores_ptr, ids, vocab_size, largest, temperature)
        is_kept = (scaled >= floor) & (scaled > float("-inf"))
        mass = tl.where(is_kept, tl.exp(scaled), 0.0)
        masses += mass
        products += tl.where(is_kept, mass * scaled, 0.0)
    total = tl.sum(masses, axis=0)
    return total, tl.log(total) - tl.sum(products, axis=0) / total


@triton.jit
def _better(value, ids, best, best_ids):
    """Per lane, the larger value; lanes walk upwards, so the first of equals stays."""
    is_better = value > best
    return tl.where(is_better, value, best), tl.where(is_better, ids, best_ids)


@triton.jit
def _first_largest(best, best_ids, vocab_size):
    """The largest over lanes, and the smallest id that has it; an id of the vocabulary even for rows of NaN."""
    largest = tl.max(best, axis=0)
    token = tl.min(tl.where(best == largest, best_ids, vocab_size - 1), axis=0)
    return largest, token


@triton.jit
def _draw_kernel(
    scores_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    typical_p_ptr,
    seed_ptr,
    position_ptr,
    token_ptr,
    stride_row,
    vocab_size,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scores_ptr += row * stride_row
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_ids = tl.zeros([BLOCK], tl.int32)
    for start in range(0, vocab_size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        scores = tl.load(scores_ptr + ids, mask=ids < vocab_size, other=float("-inf"))
        best, best_ids = _better(scores, ids, best, best_ids)
    largest, token = _first_largest(best, best_ids, vocab_size)
    temperature = tl.load(temperature_ptr + row)
    if (temperature > 0.0) & (largest > float("-inf")):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        typical_p = tl.load(typical_p_ptr + row)
        floor = largest * 0.0 + float("-inf")
        if (top_k > 0) & (top_k < vocab_size):
            floor = _search(scores_ptr, vocab_size, largest, temperature, floor, 0.0, 0.0, top_k.to(tl.float32),
                            _COUNT, BLOCK)  # fmt: skip
        if top_p < 1.0:
            total, _ = _total_and_entropy(scores_ptr, vocab_size, largest, temperature, floor, BLOCK)
            found = _search(scores_ptr, vocab_size, largest, temperature, floor, 0.0, 0.0, top_p * total,
                            _MASS, BLOCK)  # fmt: skip
            floor = tl.maximum(floor, found)
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.log(min_p))
        surprise_floor = largest * 0.0 + float("-inf")
        log_total = largest * 0.0
        entropy = largest * 0.0
        if typical_p < 1.0:
            total, entropy = _total_and_entropy(scores_ptr, vocab_size, largest, temperature, floor, BLOCK)
            log_total = tl.log(total)
            surprise_floor = _search(scores_ptr, vocab_size, largest, temperature, floor, log_total, entropy,
                                     typical_p * total, _TYPICAL, BLOCK)  # fmt: skip
        key = noise_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        best_ids = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab_size, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            scaled = _load_scaled(scores_ptr, ids, vocab_size, largest, temperature)
            value, _ = _compared(scaled, floor, log_total, entropy, _TYPICAL)
            is_kept = (scaled >= floor) & (value >= surprise_floor)
            noisy = tl.where(is_kept, scaled + gumbel_of(key, ids), float("-inf"))
            best, best_ids = _better(noisy, ids, best, best_ids)
        _, token = _first_largest(best, best_ids, vocab_size)
    tl.store(token_ptr + row, token.to(tl.int64))


def draw(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    num_rows, vocab_size = scores.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=scores.device)
    if num_rows:
        _draw_kernel[(num_rows,)](
            scores,
            *params,
            tokens,
            scores.stride(0),
            vocab_size,
            BLOCK=min(_BLOCK, triton.next_power_of_2(vocab_size)),
            num_warps=_WARPS,
        )
    return tokens
