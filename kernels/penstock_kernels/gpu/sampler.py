"""Chooses tokens: the largest of score plus Gumbel noise among what truncation keeps, or the largest score.

Every row is divided into parts, with a program each: their largest scores, then what each row keeps
(`gpu/threshold.py`), then the noise. Nothing is sorted, and sums run in a fixed order.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.sampling_params import DrawParams
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.noise import gumbel_of, noise_key
from penstock_kernels.gpu.row_parts import (
    RowParts,
    empty_parts,
    join_parts,
    largest_of_row,
    largest_parts,
    load_scaled,
    store_largest,
)
from penstock_kernels.gpu.threshold import TYPICAL, Thresholds, compared, thresholds


@triton.jit(
    do_not_specialize_on_alignment=[
        "temperature_ptr",
        "floor_ptr",
        "surprise_floor_ptr",
        "typical_score_ptr",
        "seed_ptr",
        "position_ptr",
    ]
)
def _noisy_part_kernel(
    scores_ptr, largest_ptr, temperature_ptr, floor_ptr, surprise_floor_ptr, typical_score_ptr, seed_ptr,
    position_ptr, noisy_ptr, id_ptr, stride_row, vocab_size, BLOCK: tl.constexpr, BLOCK_PARTS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """The largest of one part with noise; without it in rows that are not drawn."""
    begin(CHAINED)
    row, part, num_parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    ids = part * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.load(temperature_ptr + row)
    largest = largest_of_row(largest_ptr, row, num_parts, BLOCK_PARTS)
    scores_ptr += row * stride_row
    if (temperature > 0.0) & (largest > float("-inf")):
        scaled = load_scaled(scores_ptr, ids, vocab_size, largest, temperature)
        floor = tl.load(floor_ptr + row)
        value, _ = compared(scaled, floor, tl.load(typical_score_ptr + row), TYPICAL)
        is_kept = (scaled >= floor) & (value >= tl.load(surprise_floor_ptr + row))
        key = noise_key(tl.load(seed_ptr + row), tl.load(position_ptr + row))
        noisy = tl.where(is_kept, scaled + gumbel_of(key, ids), float("-inf"))
    else:
        noisy = tl.load(scores_ptr + ids, mask=ids < vocab_size, other=float("-inf"))
    where = row * num_parts + part
    store_largest(noisy_ptr + where, id_ptr + where, noisy, ids, vocab_size - 1)


def draw(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    num_rows, vocab_size = scores.shape
    if num_rows == 0:
        return torch.empty(0, dtype=torch.int64, device=scores.device)
    parts = largest_parts(scores)
    noisy = _with_noise(scores, parts, thresholds(scores, parts, params), params)
    return join_parts(noisy, vocab_size)


def _with_noise(scores: torch.Tensor, parts: RowParts, kept: Thresholds, params: DrawParams) -> RowParts:
    num_rows, vocab_size = scores.shape
    noisy = empty_parts(num_rows, vocab_size, scores.device)
    _noisy_part_kernel[parts.largest.shape](
        scores,
        parts.largest,
        params.temperature,
        *kept,
        params.seeds,
        params.positions,
        noisy.largest,
        noisy.ids,
        scores.stride(0),
        vocab_size,
        BLOCK=parts.block,
        BLOCK_PARTS=triton.next_power_of_2(parts.largest.shape[1]),
        num_warps=4,
        **chained(scores.device),
    )
    return noisy
