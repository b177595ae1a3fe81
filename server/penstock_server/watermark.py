"""A watermark: some of the possible successors of every token are green, and their scores are raised.

Which tokens are green follows from the token before them alone, so whoever knows the size of the vocabulary can count
the green ones in a text (Kirchenbauer and others, 2023).
"""

import math

import torch
from penstock_kernels import uniform

# Any number does, but it must not change: texts are recognised by it.
_KEY = 15485863


def green_tokens(previous: torch.Tensor, gamma: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """previous: [num_rows] int64, gamma: [num_rows, 1]; [num_rows, vocab_size] bool."""
    return uniform(previous + _KEY, vocab_size) < gamma


def z_score(token_ids: list[int], gamma: float, vocab_size: int) -> float:
    """By how many standard deviations a text has more green tokens than chance gives; 4 is a clear case."""
    previous = torch.tensor(token_ids[:-1])
    green = green_tokens(previous, torch.full((len(previous), 1), gamma), vocab_size)
    count = int(green.gather(1, torch.tensor(token_ids[1:]).unsqueeze(1)).sum())
    return (count - gamma * len(previous)) / math.sqrt(len(previous) * gamma * (1 - gamma))
