"""Prompts by FlashAttention 3, from the wheel `fa3-fwd`. Not run on a GPU by this project yet.

The wheel was built without pages, windows and float16. So keys and values are gathered, and layers with a window are
computed by our own kernels.
"""

from collections.abc import Callable

import torch

from penstock_kernels.adapters.gathered import Library, Packed
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN

MODULE = "fa3_fwd_interface"
# A chunk behind cached positions has their keys and values gathered, too: 4 bytes of traffic for each number, for
# which every query of every head of its group computes 2 flop. With four heads in a group and 550 TFLOP/s that is an
# eighth of the time of 512 queries on an H200, and as long as 64 of them.
_LEAST_CHUNK = 512


def flash_attention_3(function: Callable[..., torch.Tensor]) -> Library:
    """`function` is `flash_attn_varlen_func` of the wheel."""

    def attend(packed: Packed) -> torch.Tensor:
        return function(
            packed.query,
            packed.key,
            packed.value,
            packed.query_starts,
            packed.key_starts,
            packed.longest_query,
            packed.longest_key,
            softmax_scale=packed.scoring.scale,
            causal=True,
            softcap=packed.scoring.soft_cap or 0.0,
        )

    return Library(attend, _takes, can_score=lambda scoring: scoring.window is None)


def _takes(length: int, context: int) -> bool:
    return length == context > MAX_DECODE_LEN or length >= _LEAST_CHUNK
