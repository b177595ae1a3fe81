"""What a model computes in one step, and where in the cache its keys and values go."""

from dataclasses import dataclass

import torch
from penstock_kernels import AttentionSpans, DecodeSpans


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """What the decoder computes: every token of every span, in order."""

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    slot_mapping: torch.Tensor  # [num_tokens] int64, where each token's key and value go
    spans: AttentionSpans | DecodeSpans
