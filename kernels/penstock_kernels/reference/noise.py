"""Random numbers from a counter. PyTorch has no unsigned arithmetic; int64 that wraps around has the same bits."""

import torch

_BITS = 40


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    return gumbel_of(seeds, positions, torch.arange(vocab_size, device=seeds.device))


def gumbel_of(seeds: torch.Tensor, positions: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The noise of some token ids: [num_ids], or [num_rows, num_ids] with different ones for every row."""
    bits = _bits(_mix(_mix(seeds) + positions * _GOLDEN), ids)
    # The largest noises come from the smallest numbers, where float32 is most precise: the largest two never tie.
    small = (_shift_right(bits, 64 - _BITS).float() + 0.5).mul_(2.0**-_BITS).clamp_(max=1 - 2.0**-24)
    return small.neg_().log1p_().neg_().log_().neg_()


def uniform(seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
    ids = torch.arange(vocab_size, device=seeds.device)
    return _shift_right(_bits(_mix(seeds), ids), 40).float() * 2.0**-24


def _bits(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """64 random bits for each key and token id. keys: [num_rows] int64."""
    return _mix(keys.unsqueeze(1) + (ids + 1) * _GOLDEN)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser: a bijection that flips half of the bits whenever one changes."""
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift; torch's own repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
