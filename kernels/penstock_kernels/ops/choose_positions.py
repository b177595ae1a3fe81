"""The positions to which each query attends, where an index chooses some of a context (DeepSeek V3.2).

The index has a cache of its own, one key for each token. How good a position is for a query: over the index' heads, the
sum of their weights times what is above zero of query times key.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.attention_spans import AttentionSpans, DecodeSpans
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.seen_rows import seen_rows

# Scores that are held at a time: queries come in parts where contexts are long.
_MOST_SCORES = 2**24


def choose_positions(
    query: torch.Tensor,
    weights: torch.Tensor,
    cache: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    top_k: int,
) -> DecodeSpans:
    """The `top_k` best positions for each query, up to its own, or all where there are no more; of equals the first.

    query: [num_tokens, index_heads, index_dim]; weights: [num_tokens, index_heads] float32; cache: [num_blocks,
    block_size, 1, index_dim], with the keys of the spans themselves; spans as in `paged_attention`. Result: every query
    as a span of its own, which sees its positions in their order, for a cache with blocks of one position each: that of
    the model, seen as [num_blocks * block_size, 1, …]. Where nothing is seen, the row has no context.
    """
    _check(query, weights, cache, top_k)
    if isinstance(spans, AttentionSpans):
        count = sum(spans.query_lens)
        require(
            count == len(query), lambda: f"choose_positions: {len(query)} queries for the spans of {count}"
        )
    rows, longest = seen_rows(spans, len(query)), spans.longest
    chosen = torch.empty(len(query), top_k, dtype=torch.int32, device=query.device)
    step = _queries_at_once(longest)
    for first in range(0, len(query), step):
        part = slice(first, first + step)
        tables, seen = spans.block_tables, rows.part(part)
        table.choose_positions(query[part], weights[part], cache, tables, seen, longest, chosen[part])
    starts, lens = spans.shared(("chosen", top_k), lambda: _own_spans(rows.lens, top_k))
    return DecodeSpans(starts, lens, chosen, 1, 1, top_k, spans.unbatched)


def _queries_at_once(longest: int) -> int:
    return max(_MOST_SCORES // max(longest, 1), 1)


def _check(query: torch.Tensor, weights: torch.Tensor, cache: torch.Tensor, top_k: int) -> None:
    op = "choose_positions"
    require(
        query.dim() == 3
        and query.is_contiguous()
        and cache.dim() == 4
        and cache.is_contiguous()
        and cache.shape[2:] == (1, query.shape[2]),
        lambda: f"{op}: query {tuple(query.shape)} against cache {tuple(cache.shape)}, both contiguous",
    )
    require(
        weights.shape == query.shape[:2] and weights.dtype == torch.float32 and weights.is_contiguous(),
        lambda: f"{op}: weights {tuple(weights.shape)} must be float32, one for each head of a query",
    )
    require(top_k > 0, lambda: f"{op}: top_k {top_k}")
    require(
        cache.shape[0] * cache.shape[1] < 2**31, lambda: f"{op}: {cache.shape[0]} blocks of {cache.shape[1]}"
    )
    require_same_dtype(op, query=query, cache=cache)


def _own_spans(lens: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each query's span begins, and how many positions it gets."""
    return torch.arange(len(lens) + 1, dtype=torch.int32, device=lens.device), lens.clamp(max=top_k)


def captures_choices(device: torch.device, dim: int) -> bool:
    """Whether a graph can hold `choose_positions` for keys of so many numbers: nothing is read on the host."""
    return device.type != "cuda" or table.has_index_tiles(dim)


def choice_bytes(num_tokens: int, longest: int, num_heads: int, dim: int, top_k: int) -> int:
    """The most bytes that `choose_positions` takes for so many queries over contexts of up to `longest` positions."""
    scores = min(num_tokens, _queries_at_once(longest)) * longest
    return 4 * (scores + num_tokens * (top_k + num_heads * (dim + 1)))
