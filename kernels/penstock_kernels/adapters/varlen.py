"""Prompts by `varlen_attn` of PyTorch, which is FlashAttention 2. Not run on a GPU by this project yet.

It reads a paged cache only in pages of 256 positions, and ours are smaller. So it computes the spans that begin a
sequence: of those, no more keys are gathered than the step has tokens.
"""

from collections.abc import Callable

import torch

from penstock_kernels.adapters.gathered import Library, Packed
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN


def varlen(function: Callable[..., torch.Tensor]) -> Library:
    """`function` is `torch.nn.attention.varlen.varlen_attn`."""

    def attend(packed: Packed) -> torch.Tensor:
        return function(
            packed.query,
            packed.key,
            packed.value,
            packed.query_starts,
            packed.key_starts,
            packed.longest_query,
            packed.longest_key,
            scale=packed.scoring.scale,
            window_size=packed.window,
            enable_gqa=packed.group > 1,
        )

    return Library(attend, takes=lambda length, context: length == context > MAX_DECODE_LEN)
