"""Attention over latents in C, of spans of few tokens: in the space of the latents, which all heads share.

Queries go down to the latents by a product for each head, the heads are queries of one key head whose values are the
beginning of its keys, and what they find goes up by another product for each head.
"""

from functools import partial

import torch

from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    DecodeSpans,
    LatentArguments,
    Scoring,
)
from penstock_kernels.native import attention
from penstock_kernels.native.grouped_linear import grouped_linear
from penstock_kernels.native.library import DTYPES
from penstock_kernels.native.linear import can_multiply
from penstock_kernels.reference.latent_attention import latent_attention_beside

# Query heads that read the same keys at a time: at least so many, so that a key is not loaded for each of them.
_FEWEST_HEADS, _MOST_HEADS = 4, 32
# Pieces of work for each thread.
_PIECES = 3


def can_attend(dtype: torch.dtype, rank: int, rope_dim: int, nope_dim: int) -> bool:
    """Whether it is compiled, for such latents and queries."""
    return (
        dtype in DTYPES
        and can_multiply(nope_dim)
        and can_multiply(rank)
        and attention.can_hold(rank + rope_dim, rank, 1)
    )


def supports(arguments: LatentArguments) -> bool:
    """Whether `latent_attention` can take these."""
    rank, nope_dim = arguments.key_up.shape[1:]
    spans = arguments.spans
    is_short = not isinstance(spans, DecodeSpans) or spans.num_prompts == 0
    return is_short and can_attend(arguments.query.dtype, rank, arguments.cache.shape[3] - rank, nope_dim)


def latent_attention(arguments: LatentArguments, max_lanes: int = 0) -> torch.Tensor:
    """As the op. A row of a short span has the same bits whatever else is computed. `max_lanes` as in
    `paged_attention`.
    """
    spans = arguments.spans
    if isinstance(spans, DecodeSpans):
        return _absorbed(arguments, max_lanes)
    attend = partial(_absorbed, max_lanes=max_lanes)
    return latent_attention_beside(arguments, MAX_DECODE_LEN, attend)


def _absorbed(arguments: LatentArguments, max_lanes: int = 0) -> torch.Tensor:
    query, cache, key_up, spans = arguments.query, arguments.cache, arguments.key_up, arguments.spans
    (num_tokens, num_heads), (rank, nope_dim) = query.shape[:2], key_up.shape[1:]
    absorbed = torch.empty(num_tokens, num_heads, cache.shape[3], dtype=query.dtype)
    down = absorbed[..., :rank].flatten(0, 1)
    grouped_linear(query[..., :nope_dim].flatten(0, 1), None, key_up, None, max_lanes, down)
    absorbed[..., rank:].copy_(query[..., nope_dim:])
    num_pieces = _num_pieces(num_heads, len(spans.context_lens))
    key = cache.expand(-1, -1, num_pieces, -1)
    scoring = Scoring(arguments.scale)
    found = attention.attend(absorbed, key, key[..., :rank], spans, scoring, max_lanes)
    up = grouped_linear(found.flatten(0, 1), None, arguments.value_up, None, max_lanes)
    return up.view(num_tokens, num_heads, -1)


def _num_pieces(num_heads: int, num_spans: int) -> int:
    """In how many pieces the heads of a span are computed: enough for all threads, but each with some heads."""
    wanted = -(-_PIECES * torch.get_num_threads() // max(num_spans, 1))
    most = max(num_heads // _FEWEST_HEADS, 1)
    fewest = -(-num_heads // _MOST_HEADS)
    possible = [count for count in range(1, num_heads + 1) if num_heads % count == 0 and count >= fewest]
    within = [count for count in possible if count <= most] or possible[:1]
    return next((count for count in within if count >= wanted), within[-1])
