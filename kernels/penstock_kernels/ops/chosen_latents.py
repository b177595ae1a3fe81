"""Attention over some of the latents of a context, which an index chooses for every query (DeepSeek V3.2).

The index has a cache of its own, one key for each token. How good a position is for a query: over the index' heads, the
sum of their weights times what is above zero of query times key.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.attention_spans import AttentionSpans
from penstock_kernels.base.checks import require, require_same_dtype


def choose_positions(
    query: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, spans: AttentionSpans, top_k: int
) -> torch.Tensor:
    """The best positions of the cache for each query, up to its own: [num_tokens, top_k] int64, flat; -1 behind the
    last where a query sees fewer.

    query: [num_tokens, index_heads, index_dim]; weights: [num_tokens, index_heads] float32; cache: [num_blocks,
    block_size, 1, index_dim], with the keys of the spans themselves; spans as in `paged_attention`.
    """
    op = "choose_positions"
    require(
        query.dim() == 3 and cache.dim() == 4 and cache.shape[2:] == (1, query.shape[2]),
        lambda: f"{op}: query {tuple(query.shape)} against cache {tuple(cache.shape)}",
    )
    require(
        weights.shape == query.shape[:2] and weights.dtype == torch.float32,
        lambda: f"{op}: weights {tuple(weights.shape)} must be float32, one for each head of a query",
    )
    require(sum(spans.query_lens) == len(query), lambda: f"{op}: {len(query)} queries for the spans")
    require(top_k > 0, lambda: f"{op}: top_k {top_k}")
    require_same_dtype(op, query=query, cache=cache)
    return table.choose_positions(query, weights, cache, spans, top_k)


def chosen_latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    key_up: torch.Tensor,
    value_up: torch.Tensor,
    chosen: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """As `latent_attention`, over the positions that `choose_positions` found: each query sees at least one."""
    op = "chosen_latent_attention"
    heads, rank, nope_dim = key_up.shape
    require(
        query.dim() == 3 and query.shape[1] == heads and cache.shape[-1] == rank + query.shape[2] - nope_dim,
        lambda: f"{op}: query {tuple(query.shape)}, key_up {tuple(key_up.shape)}, cache {tuple(cache.shape)}",
    )
    require(
        chosen.dim() == 2 and len(chosen) == len(query) and chosen.dtype == torch.int64,
        lambda: f"{op}: chosen {tuple(chosen.shape)} for {len(query)} queries",
    )
    require_same_dtype(op, query=query, cache=cache, key_up=key_up, value_up=value_up)
    return table.chosen_latent_attention(query, cache, key_up, value_up, chosen, scale)
