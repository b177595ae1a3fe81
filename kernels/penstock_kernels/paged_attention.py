"""Attention of several spans of queries over a paged KV cache.

Cache layout: [num_blocks, block_size, num_kv_heads, head_dim] for keys and values each. One token's heads lie side by
side, so that storing a token is one contiguous copy on the CPU, a gather by position moves whole rows, and a kernel
that walks one head reads rows of head_dim numbers (256 bytes in bf16 at 128), full memory transactions on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype

Shared = TypeVar("Shared")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpans:
    """Which queries see which cache positions, for one step and all layers.

    Span i owns `query_lens[i]` consecutive rows of the queries and sees the first `context_lens[i]` positions of its
    sequence, its own tokens being the last of them. `block_tables`: [num_spans, max_blocks] int32; entries past the
    span's context are never read. `unbatched` computes every span by itself, so that none depends on its company.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: torch.Tensor
    block_size: int
    unbatched: bool = False
    _shared: dict[Any, Any] = field(default_factory=dict)

    def shared(self, key: Any, build: Callable[[], Shared]) -> Shared:
        """What `build` makes, built once per step: layers of the same window share their work map."""
        if key not in self._shared:
            self._shared[key] = build()
        shared: Shared = self._shared[key]
        return shared


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    spans: AttentionSpans,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> torch.Tensor:
    """Causal attention; keys and values of the spans themselves must be stored already.

    query: [num_tokens, num_heads, head_dim], num_tokens = sum(query_lens); caches: [num_blocks, block_size,
    num_kv_heads, head_dim], num_heads a multiple of num_kv_heads. `window`: a query sees itself and the window - 1
    positions before. `soft_cap`: scores become `soft_cap * tanh(score / soft_cap)`. Result like query, contiguous.
    Cache positions outside a span's context are never read into its result, whatever they hold.
    """
    require(
        query.dim() == 3 and query.shape[0] == sum(spans.query_lens),
        f"paged_attention: query {tuple(query.shape)} for {sum(spans.query_lens)} tokens",
    )
    require(
        key_cache.shape == value_cache.shape
        and key_cache.shape[1] == spans.block_size
        and key_cache.shape[3] == query.shape[2]
        and query.shape[1] % key_cache.shape[2] == 0,
        f"paged_attention: query {tuple(query.shape)} against cache {tuple(key_cache.shape)}",
    )
    require(window is None or window > 0, f"paged_attention: window {window}")
    require(soft_cap is None or soft_cap > 0, f"paged_attention: soft_cap {soft_cap}")
    require_same_dtype("paged_attention", query=query, key_cache=key_cache, value_cache=value_cache)
    return reference.paged_attention(query, key_cache, value_cache, spans, scale, window, soft_cap)
