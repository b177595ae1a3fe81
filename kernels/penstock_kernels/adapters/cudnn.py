"""Prompts by cuDNN, which PyTorch brings. Not run on a GPU by this project yet.

As PyTorch calls it, it knows no pages and no sequences side by side. So it computes spans that begin a sequence, one
after the other, each over keys and values that were gathered.
"""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from penstock_kernels.adapters.gathered import Library, Packed
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, Scoring


def by_cudnn(*args: torch.Tensor, **options: object) -> torch.Tensor:
    """PyTorch's attention by cuDNN or not at all."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attended: torch.Tensor = scaled_dot_product_attention(*args, **options)  # type: ignore[arg-type]
    return attended


def cudnn(function: Callable[..., torch.Tensor]) -> Library:
    """`function` takes what `scaled_dot_product_attention` does."""

    def attend(packed: Packed) -> torch.Tensor:
        lens = packed.query_lens
        spans = zip(
            *(part.split_with_sizes(lens) for part in (packed.query, packed.key, packed.value)), strict=True
        )
        return torch.cat([attend_span(packed, *span) for span in spans])

    def attend_span(packed: Packed, *span: torch.Tensor) -> torch.Tensor:
        heads = (part.transpose(0, 1).unsqueeze(0) for part in span)
        scale, has_groups = packed.scoring.scale, packed.group > 1
        attended = function(*heads, is_causal=True, scale=scale, enable_gqa=has_groups)
        return attended.squeeze(0).transpose(0, 1)

    return Library(
        attend, takes=lambda length, context: length == context > MAX_DECODE_LEN, can_score=_can_score
    )


def _can_score(scoring: Scoring) -> bool:
    return scoring.window is None and scoring.soft_cap is None
