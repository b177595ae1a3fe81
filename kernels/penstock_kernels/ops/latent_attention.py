"""Attention whose cache holds one compressed vector (a latent) for each token, of which all keys and values are made.

Cache layout: [num_blocks, block_size, 1, rank + rope_dim]: the latent, and behind it the rotated numbers that all heads
share. A head's key is its projection of the latent beside these numbers, its value another projection of the latent.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.attention_spans import AttentionSpans, DecodeSpans
from penstock_kernels.base.checks import require, require_same_dtype


def store_latents(latents: torch.Tensor, cache: torch.Tensor, cache_positions: torch.Tensor) -> None:
    """Scatter `latents` [num_tokens, rank + rope_dim] into the cache, in place; cache_positions as in `store_kv`."""
    require(
        cache.dim() == 4
        and cache.is_contiguous()
        and latents.shape[1:] == cache.shape[3:]
        and cache.shape[2] == 1,
        lambda: f"store_latents: latents {tuple(latents.shape)} against cache {tuple(cache.shape)}",
    )
    require(
        cache_positions.shape == latents.shape[:1] and cache_positions.dtype == torch.int64,
        "store_latents: cache_positions must be int64, one per token",
    )
    require_same_dtype("store_latents", latents=latents, cache=cache)
    table.store_latents(latents, cache, cache_positions)


def latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    scale: float,
) -> torch.Tensor:
    """Causal attention; latents of the spans themselves must be stored already.

    query: [num_tokens, num_heads, nope_dim + rope_dim], the last numbers rotated; key_up: [num_heads, nope_dim, rank];
    value_up: [num_heads, value_dim, rank]; spans as in `paged_attention`. A span of one token is computed in the space
    of the latents, where keys need not be made; a longer one makes the keys and values of its context. Result:
    [num_tokens, num_heads, value_dim].
    """
    num_heads, nope_dim, rank = key_up.shape
    rope_dim = cache.shape[3] - rank
    require(
        query.dim() == 3
        and query.shape[1:] == (num_heads, nope_dim + rope_dim)
        and (value_up.shape[0], value_up.shape[2]) == (num_heads, rank)
        and cache.shape[1:3] == (spans.block_size, 1),
        lambda: (
            f"latent_attention: query {tuple(query.shape)}, cache {tuple(cache.shape)}, "
            f"key_up {tuple(key_up.shape)}, value_up {tuple(value_up.shape)}"
        ),
    )
    require(spans.tree is None, "latent_attention: no trees")
    require_same_dtype("latent_attention", query=query, cache=cache, key_up=key_up, value_up=value_up)
    return table.latent_attention(query, cache, key_up, value_up, spans, scale)
