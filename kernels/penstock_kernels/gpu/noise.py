"""SplitMix64 over a counter: what the sampler draws with, and rows of it by themselves."""

import torch
import triton
import triton.language as tl

# Numbers of a program: 8 per thread at 4 warps. Unmeasured.
_BLOCK = 1024

GOLDEN: tl.constexpr = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
_MULTIPLIER_1: tl.constexpr = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
_MULTIPLIER_2: tl.constexpr = tl.constexpr(0x94D049BB133111EB - 2**64)


@triton.jit
def mix(x):
    """SplitMix64's finaliser."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _MULTIPLIER_1
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _MULTIPLIER_2
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def noise_key(seed, position):
    """The key of a row's noise, which depends on nothing but the key and the token id."""
    return mix(mix(seed) + position * GOLDEN)


@triton.jit
def gumbel_of(key, ids):
    """Standard Gumbel noise of token ids. The 40 random bits equal the reference's; the logarithms are within 1e-5."""
    bits = mix(key + (ids.to(tl.int64) + 1) * GOLDEN)
    small = ((bits >> 24) & 0xFFFFFFFFFF).to(tl.float32)
    small = tl.minimum((small + 0.5) * 9.094947017729282e-13, 1.0 - 5.960464477539063e-08)
    # -log(1 - small): the hardware's logarithm is only absolutely accurate near 1, where the series is exact.
    series = 1.0 + small * (0.5 + small * (1 / 3 + small * (0.25 + small * (0.2 + small * (1 / 6)))))
    exponential = tl.where(small < 0.0625, small * series, -tl.log(1.0 - small))
    return -tl.log(exponential)


@triton.jit(do_not_specialize_on_alignment=["seed_ptr", "position_ptr"])
def _noise_kernel(seed_ptr, position_ptr, out_ptr, vocab_size, IS_GUMBEL: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(seed_ptr + row)
    if IS_GUMBEL:
        numbers = gumbel_of(noise_key(seed, tl.load(position_ptr + row)), ids)
    else:
        bits = mix(mix(seed) + (ids.to(tl.int64) + 1) * GOLDEN)
        numbers = ((bits >> 40) & 0xFFFFFF).to(tl.float32) * 5.960464477539063e-08
    tl.store(out_ptr + row * vocab_size + ids, numbers, mask=ids < vocab_size)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return _noise(seeds, positions, vocab_size)


def uniform(seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return _noise(seeds, None, vocab_size)


def _noise(seeds: torch.Tensor, positions: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    out = torch.empty((seeds.shape[0], vocab_size), dtype=torch.float32, device=seeds.device)
    if out.numel():
        block = min(_BLOCK, triton.next_power_of_2(vocab_size))
        _noise_kernel[(seeds.shape[0], triton.cdiv(vocab_size, block))](
            seeds,
            seeds if positions is None else positions,
            out,
            vocab_size,
            IS_GUMBEL=positions is not None,
            BLOCK=block,
            num_warps=4,
        )
    return out
