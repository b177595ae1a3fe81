"""Counter-based randomness: a pure function of (seed, position, token id), the same in every batch and on every rank.

SplitMix64 (Steele, Lea, Flood 2014): its finaliser over a counter passes BigCrush. Wrapping int64 arithmetic stands in
for unsigned.
"""

import torch


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
_BITS = 40


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise [num_rows, vocab_size] float32, always finite. seeds, positions: [num_rows] int64."""
    bits = _bits(_mix(_mix(seeds) + positions * _GOLDEN), vocab_size)
    # The largest noises come from the smallest numbers here, where float32 is finest: no two tokens tie at the top.
    small = (_shift_right(bits, 64 - _BITS).float() + 0.5).mul_(2.0**-_BITS).clamp_(max=1 - 2.0**-24)
    return small.neg_().log1p_().neg_().log_().neg_()


def uniform(seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Numbers in [0, 1) of (seed, token id), [num_rows, vocab_size] float32. seeds: [num_rows] int64."""
    return _shift_right(_bits(_mix(seeds), vocab_size), 40).float() * 2.0**-24


def _bits(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """64 random bits for each key and token id. keys: [num_rows] int64."""
    counters = torch.arange(1, vocab_size + 1, device=keys.device) * _GOLDEN
    return _mix(keys.unsqueeze(1) + counters)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser: a bijection that flips half of the bits whenever one changes."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift; torch's own repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
