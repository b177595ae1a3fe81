"""What a model takes for one step: its tokens, and where in the cache their keys and values go."""

from dataclasses import dataclass

import torch
from penstock_kernels import AttentionSpans, DecodeSpans


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """Every token of every span, in order."""

    token_ids: torch.Tensor  # [num_tokens] int64
    positions: torch.Tensor  # [num_tokens] int64
    cache_positions: (
        torch.Tensor
    )  # [num_tokens] int64: block * block_size + offset of each token's key and value
    spans: AttentionSpans | DecodeSpans
    slots: torch.Tensor  # [num_spans] int64: whose tokens they are
    # [num_tokens] int64: the number of the adapter that each token uses, or -1; None: no token uses one.
    adapters: torch.Tensor | None = None
