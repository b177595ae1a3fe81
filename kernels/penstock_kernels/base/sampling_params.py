"""Parameters of the sampling ops: one column per parameter, one row per sequence."""

from typing import NamedTuple

import torch


class DrawParams(NamedTuple):
    """Parameters of drawing, each [num_rows] and contiguous. A parameter can be off for one row and on for another."""

    temperature: torch.Tensor  # float32; 0: the most likely token
    top_k: torch.Tensor  # int32; 0: off
    top_p: torch.Tensor  # float32; 1: off
    min_p: torch.Tensor  # float32; 0: off
    typical_p: torch.Tensor  # float32; 1: off
    seeds: torch.Tensor  # int64, the bits of the unsigned seed
    positions: torch.Tensor  # int64, of the new token


class PenaltyParams(NamedTuple):
    """Penalties of rows, each [num_rows] and contiguous. tokens: [num_slots, max_len] int32."""

    tokens: torch.Tensor
    slots: torch.Tensor  # int64, the rows of `tokens`
    lengths: torch.Tensor  # int64, tokens known
    prompt_lens: torch.Tensor  # int64
    repetition: torch.Tensor  # float32; 1: off
    frequency: torch.Tensor  # float32; 0: off
    presence: torch.Tensor  # float32; 0: off
