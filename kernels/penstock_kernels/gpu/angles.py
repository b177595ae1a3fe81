"""Cosines and sines of rotary embedding, for all layers of a step: otherwise eleven small ops, each a kernel."""

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.chain import begin, chained

# Angles of a program: 2 per thread at 4 warps, because each takes some fifty instructions. Unmeasured.
_BLOCK = 256


@triton.jit
def _sine_and_cosine(angles):
    """Sine and cosine of any angle, to two units in the last place. Those of the library take memory of the thread for
    angles above 100,000: here quarters of a turn are counted in float64, and polynomials compute the rest (those of
    Cephes, by S. Moshier)."""
    quarters = angles.to(tl.float64) * 0.6366197723675814
    nearest = tl.floor(quarters + 0.5)
    x = ((quarters - nearest) * 1.5707963267948966).to(tl.float32)
    quarter = nearest.to(tl.int64)
    square = x * x
    sine = x + x * square * (-1.6666654611e-1 + square * (8.3321608736e-3 - square * 1.9515295891e-4))
    cosine = 4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5)
    cosine = 1.0 - 0.5 * square + square * square * cosine
    is_odd = (quarter & 1) != 0
    odd_sine = tl.where(is_odd, cosine, sine)
    odd_cosine = tl.where(is_odd, sine, cosine)
    return (
        tl.where((quarter & 2) != 0, -odd_sine, odd_sine),
        tl.where(((quarter + 1) & 2) != 0, -odd_cosine, odd_cosine),
    )


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["position_ptr"])
def _angles_kernel(position_ptr, frequency_ptr, cos_ptr, sin_ptr, num_tokens, amplitude, HALF: tl.constexpr,
                   BLOCK_TOKENS: tl.constexpr, BLOCK_HALF: tl.constexpr, CHAINED: tl.constexpr):  # fmt: skip
    """The second half of a row is the first again, but for the sign of sines."""
    begin(CHAINED)
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    columns = tl.arange(0, BLOCK_HALF)
    is_token, is_column = tokens < num_tokens, columns < HALF
    positions = tl.load(position_ptr + tokens, mask=is_token, other=0).to(tl.float32)
    frequencies = tl.load(frequency_ptr + columns, mask=is_column, other=0.0)
    angles = positions[:, None] * frequencies[None, :]
    sine, cosine = _sine_and_cosine(angles)
    cos = (cosine * amplitude).to(cos_ptr.dtype.element_ty)
    sin = sine * amplitude
    places = (tokens * (2 * HALF))[:, None] + columns[None, :]
    mask = is_token[:, None] & is_column[None, :]
    tl.store(cos_ptr + places, cos, mask=mask)
    tl.store(cos_ptr + places + HALF, cos, mask=mask)
    tl.store(sin_ptr + places, (-sin).to(sin_ptr.dtype.element_ty), mask=mask)
    tl.store(sin_ptr + places + HALF, sin.to(sin_ptr.dtype.element_ty), mask=mask)


def rotary_table(
    positions: torch.Tensor, inv_freq: torch.Tensor, amplitude: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, half = len(positions), len(inv_freq)
    cos, sin = (torch.empty((num_tokens, 2 * half), dtype=dtype, device=positions.device) for _ in range(2))
    if num_tokens == 0 or half == 0:
        return cos, sin
    block_half = triton.next_power_of_2(half)
    block_tokens = max(1, _BLOCK // block_half)
    _angles_kernel[(triton.cdiv(num_tokens, block_tokens),)](
        positions,
        inv_freq,
        cos,
        sin,
        num_tokens,
        float(amplitude),
        HALF=half,
        BLOCK_TOKENS=block_tokens,
        BLOCK_HALF=block_half,
        num_warps=4,
        **chained(positions.device),
    )
    return cos, sin
