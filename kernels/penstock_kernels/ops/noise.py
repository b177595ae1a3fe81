"""Counter-based randomness: a pure function of (seed, position, token id), the same in every batch and on every rank.

SplitMix64 (Steele, Lea, Flood 2014): its finaliser over a counter passes BigCrush.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise [num_rows, vocab_size] float32, always finite. seeds, positions: [num_rows] int64.

    The random bits are the same on every device; the logarithms of them are within 1e-5.
    """
    _check("gumbel", seeds=seeds, positions=positions)
    require(seeds.shape == positions.shape, f"gumbel: {len(positions)} positions for {len(seeds)} seeds")
    return table.gumbel(seeds, positions, vocab_size)


def uniform(seeds: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Numbers in [0, 1) of (seed, token id), multiples of 2^-24: [num_rows, vocab_size] float32, the same everywhere.

    seeds: [num_rows] int64.
    """
    _check("uniform", seeds=seeds)
    return table.uniform(seeds, vocab_size)


def _check(op: str, **rows: torch.Tensor) -> None:
    for name, values in rows.items():
        require(
            values.dim() == 1 and values.dtype == torch.int64 and values.is_contiguous(),
            f"{op}: {name} must be one contiguous row of int64",
        )
