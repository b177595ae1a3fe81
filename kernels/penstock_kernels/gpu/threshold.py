"""Thresholds of a row: the score, and the surprise, that a token must reach to be drawn.

Truncation keeps what reaches a threshold, so the questions are "which is the largest threshold that k tokens reach" and
"... that tokens of mass p reach". Both are answered by narrowing an interval of float bits, four ways a pass, until one
token at most is left inside: about 8 passes. Sums run in a fixed order.

Nearly always the threshold is among the tokens close to the best. One program for each part of a row collects these,
in order; then one program for each row searches among them, an eighth of the row at most. Where they do not suffice,
because a row is flat or much of it is wanted, it searches the row itself.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.sampling_params import DrawParams
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.row_parts import RowParts, largest_of_row, load_scaled

# Likely tokens of a part that are collected: at most one in so many. Unmeasured.
_LIKELY = 8
# Numbers that the search holds at once, and its warps. Unmeasured.
_BLOCK = 4096
_WARPS = 8

# A likely token is at most so much less likely than the best, in nats. Unmeasured.
_REACH: tl.constexpr = tl.constexpr(-10.0)
# Stages of the search, and what the values are that it compares.
_COUNT: tl.constexpr = tl.constexpr(0)
_MASS: tl.constexpr = tl.constexpr(1)
TYPICAL: tl.constexpr = tl.constexpr(2)
# Numbers that are known of each part, as float32.
_MASS_OF_PART: tl.constexpr = tl.constexpr(0)
_PRODUCT_OF_PART: tl.constexpr = tl.constexpr(1)  # the sum of mass times score
_LIKELY_OF_PART: tl.constexpr = tl.constexpr(2)  # how many tokens are likely
_NUM_FACTS: tl.constexpr = tl.constexpr(3)


class Thresholds(NamedTuple):
    """The thresholds of every row, each [num_rows] float32. Floors are minus infinity where a row keeps all."""

    floors: torch.Tensor  # of scores
    surprise_floors: torch.Tensor  # of what `compared` says in the stage TYPICAL
    typical_scores: torch.Tensor  # the score of a token that is as surprising as the row on average


@triton.jit
def key_of(value):
    """int32 in the order of the floats."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value_of(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def compared(scaled, floor, typical_score, STAGE: tl.constexpr):
    """The value that a stage compares with its threshold, and the weight that counts towards its target."""
    is_kept = scaled >= floor
    weights = tl.where(is_kept, tl.exp(scaled), 0.0)
    value = scaled
    if STAGE == _COUNT:
        weights = tl.where(scaled > float("-inf"), 1.0, 0.0)
    if STAGE == TYPICAL:
        value = tl.where(is_kept & (scaled > float("-inf")), -tl.abs(typical_score - scaled), float("-inf"))
    return value, weights


@triton.jit
def _search(scores_ptr, num_scores, largest, temperature, floor, typical_score, target,
            STAGE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The largest threshold that weights of at least `target` reach; minus infinity when all do not suffice."""
    low = -2139095041  # the key of minus infinity
    high = 1  # just above the key of 0, the largest value
    num_low = num_scores
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
        for start in range(0, num_scores, BLOCK):
            scaled = load_scaled(scores_ptr, start + tl.arange(0, BLOCK), num_scores, largest, temperature)
            value, weights = compared(scaled, floor, typical_score, STAGE)
            keys = key_of(value)
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
def _mass_and_product(scores_ptr, num_scores, largest, temperature, floor, BLOCK: tl.constexpr):
    """Mass of what is kept, and the sum of mass times score."""
    masses = tl.zeros([BLOCK], tl.float32)
    products = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_scores, BLOCK):
        scaled = load_scaled(scores_ptr, start + tl.arange(0, BLOCK), num_scores, largest, temperature)
        is_kept = (scaled >= floor) & (scaled > float("-inf"))
        mass = tl.where(is_kept, tl.exp(scaled), 0.0)
        masses += mass
        products += tl.where(is_kept, mass * scaled, 0.0)
    return tl.sum(masses, axis=0), tl.sum(products, axis=0)


@triton.jit
def _mass_above(
    likely_ptr, num_likely, floor, typical_score, bound, STAGE: tl.constexpr, BLOCK: tl.constexpr
):
    """The weight of all likely tokens with a value of at least the bound."""
    masses = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_likely, BLOCK):
        scaled = load_scaled(likely_ptr, start + tl.arange(0, BLOCK), num_likely, 0.0, 1.0)
        value, weights = compared(scaled, floor, typical_score, STAGE)
        masses += tl.where(value >= bound, weights, 0.0)
    return tl.sum(masses, axis=0)


@triton.jit
def _threshold(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest, temperature, floor,
               typical_score, target, STAGE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Searches among the likely tokens, if the threshold must be that of one of them, else in the whole row."""
    # The value that no other token has.
    bound = typical_score * 0.0 + _REACH
    if STAGE == TYPICAL:
        bound = _REACH - typical_score
    mass = _mass_above(likely_ptr, num_likely, floor, typical_score, bound, STAGE, BLOCK)
    found_ptr = scores_ptr
    num_scores = vocab_size
    if has_all_likely & ((floor >= _REACH) | (mass >= target)):
        found_ptr = likely_ptr
        num_scores = num_likely
        largest *= 0.0
        temperature = temperature * 0.0 + 1.0
    return _search(found_ptr, num_scores, largest, temperature, floor, typical_score, target, STAGE, BLOCK)


@triton.jit
def _mass_of_kept(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest, temperature, floor,
                  fact_ptr, num_parts, BLOCK: tl.constexpr, BLOCK_PARTS: tl.constexpr):  # fmt: skip
    """Mass of what the floor keeps, and the sum of mass times score."""
    if floor == float("-inf"):
        mass = tl.sum(_facts(fact_ptr, _MASS_OF_PART, num_parts, BLOCK_PARTS), axis=0)
        product = tl.sum(_facts(fact_ptr, _PRODUCT_OF_PART, num_parts, BLOCK_PARTS), axis=0)
    else:
        # Not the parameter itself: a vocabulary of one is a constant to the compiler.
        found_ptr = scores_ptr
        num_scores = vocab_size
        if has_all_likely & (floor >= _REACH):
            found_ptr = likely_ptr
            num_scores = num_likely
            largest *= 0.0
            temperature = temperature * 0.0 + 1.0
        mass, product = _mass_and_product(found_ptr, num_scores, largest, temperature, floor, BLOCK)
    return mass, product


@triton.jit
def _is_truncated(row, largest, temperature, top_k_ptr, top_p_ptr, typical_p_ptr):
    """Whether a row is drawn, and has a threshold that must be searched."""
    truncates = tl.load(top_k_ptr + row) > 0
    truncates |= tl.load(top_p_ptr + row) < 1.0
    truncates |= tl.load(typical_p_ptr + row) < 1.0
    return (temperature > 0.0) & (largest > float("-inf")) & truncates


@triton.jit(do_not_specialize_on_alignment=["temperature_ptr", "top_k_ptr", "top_p_ptr", "typical_p_ptr"])
def _likely_kernel(
    scores_ptr, largest_ptr, temperature_ptr, top_k_ptr, top_p_ptr, typical_p_ptr, likely_ptr, fact_ptr,
    stride_row, vocab_size, BLOCK: tl.constexpr, LIMIT: tl.constexpr, BLOCK_PARTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Collects the likely tokens of one part, in order, then minus infinity. Beyond the limit they are counted."""
    begin(CHAINED)
    row, part, num_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperature_ptr + row)
    largest = largest_of_row(largest_ptr, row, num_parts, BLOCK_PARTS)
    if _is_truncated(row, largest, temperature, top_k_ptr, top_p_ptr, typical_p_ptr):
        ids = part * BLOCK + tl.arange(0, BLOCK)
        scaled = load_scaled(scores_ptr + row * stride_row, ids, vocab_size, largest, temperature)
        is_likely = scaled >= _REACH
        places = tl.cumsum(is_likely.to(tl.int32), axis=0) - 1
        count = tl.sum(is_likely.to(tl.int32), axis=0)
        likely_ptr += (row * num_parts + part) * LIMIT
        tl.store(likely_ptr + places, scaled, mask=is_likely & (places < LIMIT))
        rest = tl.arange(0, LIMIT)
        tl.store(likely_ptr + rest, tl.full([LIMIT], float("-inf"), tl.float32), mask=rest >= count)
        is_real = scaled > float("-inf")
        mass = tl.where(is_real, tl.exp(scaled), 0.0)
        product = tl.where(is_real, mass * scaled, 0.0)
        fact_ptr += row * _NUM_FACTS * num_parts + part
        tl.store(fact_ptr + _MASS_OF_PART * num_parts, tl.sum(mass, axis=0))
        tl.store(fact_ptr + _PRODUCT_OF_PART * num_parts, tl.sum(product, axis=0))
        tl.store(fact_ptr + _LIKELY_OF_PART * num_parts, count.to(tl.float32))


@triton.jit
def _facts(fact_ptr, FACT: tl.constexpr, num_parts, BLOCK_PARTS: tl.constexpr):
    """One fact of all parts of a row."""
    parts = tl.arange(0, BLOCK_PARTS)
    return tl.load(fact_ptr + FACT * num_parts + parts, mask=parts < num_parts, other=0.0)


@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_p_ptr",
        "typical_p_ptr",
        "floor_ptr",
        "surprise_floor_ptr",
        "typical_score_ptr",
    ]
)
def _threshold_kernel(
    scores_ptr, largest_ptr, likely_ptr, fact_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    typical_p_ptr, floor_ptr, surprise_floor_ptr, typical_score_ptr, stride_row, vocab_size, num_parts,
    LIMIT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_PARTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """One program a row. Likely tokens are a short row of scores, which are scaled already."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    largest = largest_of_row(largest_ptr, row, num_parts, BLOCK_PARTS)
    floor = temperature * 0.0 + float("-inf")
    surprise_floor = floor
    typical_score = temperature * 0.0
    if _is_truncated(row, largest, temperature, top_k_ptr, top_p_ptr, typical_p_ptr):
        scores_ptr += row * stride_row
        likely_ptr += row * num_parts * LIMIT
        fact_ptr += row * _NUM_FACTS * num_parts
        num_likely = num_parts * LIMIT
        has_all_likely = tl.max(_facts(fact_ptr, _LIKELY_OF_PART, num_parts, BLOCK_PARTS), axis=0) <= LIMIT
        top_k = tl.load(top_k_ptr + row)
        if (top_k > 0) & (top_k < vocab_size):
            floor = _threshold(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest, temperature,
                               floor, typical_score, top_k.to(tl.float32), _COUNT, BLOCK)  # fmt: skip
        top_p = tl.load(top_p_ptr + row)
        if top_p < 1.0:
            mass, _ = _mass_of_kept(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest,
                                    temperature, floor, fact_ptr, num_parts, BLOCK, BLOCK_PARTS)  # fmt: skip
            found = _threshold(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest, temperature,
                               floor, typical_score, top_p * mass, _MASS, BLOCK)  # fmt: skip
            floor = tl.maximum(floor, found)
        min_p = tl.load(min_p_ptr + row)
        if min_p > 0.0:
            floor = tl.maximum(floor, tl.log(min_p))
        typical_p = tl.load(typical_p_ptr + row)
        if typical_p < 1.0:
            mass, product = _mass_of_kept(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest,
                                          temperature, floor, fact_ptr, num_parts, BLOCK, BLOCK_PARTS)  # fmt: skip
            typical_score = product / mass
            surprise_floor = _threshold(likely_ptr, num_likely, has_all_likely, scores_ptr, vocab_size, largest,
                                        temperature, floor, typical_score, typical_p * mass, TYPICAL,
                                        BLOCK)  # fmt: skip
    elif tl.load(min_p_ptr + row) > 0.0:
        floor = tl.log(tl.load(min_p_ptr + row))
    tl.store(floor_ptr + row, floor)
    tl.store(surprise_floor_ptr + row, surprise_floor)
    tl.store(typical_score_ptr + row, typical_score)


def thresholds(scores: torch.Tensor, parts: RowParts, params: DrawParams) -> Thresholds:
    """The thresholds of each row. `parts` has the largest score of every part of it."""
    (num_rows, num_parts), device = parts.largest.shape, scores.device
    # Blocks of one number, in a vocabulary of one token, are more than Triton 3.6 can arrange.
    limit = max(parts.block // _LIKELY, 2)
    likely, facts, kept = (
        torch.empty(shape, dtype=torch.float32, device=device)
        for shape in ((num_rows, num_parts, limit), (num_rows, _NUM_FACTS.value, num_parts), (3, num_rows))
    )
    constants = {"LIMIT": limit, "BLOCK_PARTS": triton.next_power_of_2(num_parts)}
    row = (scores.stride(0), scores.shape[1])
    _likely_kernel[(num_rows, num_parts)](
        scores,
        parts.largest,
        params.temperature,
        params.top_k,
        params.top_p,
        params.typical_p,
        likely,
        facts,
        *row,
        BLOCK=parts.block,
        num_warps=4,
        **constants,
        **chained(device),
    )
    block = min(_BLOCK, triton.next_power_of_2(num_parts * limit))
    _threshold_kernel[(num_rows,)](
        scores,
        parts.largest,
        likely,
        facts,
        *params[:5],
        *kept,
        *row,
        num_parts,
        BLOCK=block,
        # 64 numbers and 8 warps spill on sm_89.
        num_warps=_WARPS if block > 64 else 1,
        **constants,
        **chained(device),
    )
    return Thresholds(*kept)
