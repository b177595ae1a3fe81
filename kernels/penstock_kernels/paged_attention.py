"""Attention of several spans of queries over a paged KV cache.

Cache layout: [num_blocks, block_size, num_kv_heads, head_dim] for keys and values each. One token's heads lie side by
side, so that storing a token is one contiguous copy on the CPU, a gather by position moves whole rows, and a kernel
that walks one head reads rows of head_dim numbers (256 bytes in bf16 at 128), full memory transactions on a GPU.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from penstock_kernels import reference
from penstock_kernels.checks import require, require_same_dtype
from penstock_kernels.dispatch import runs_kernel
from penstock_kernels.native import attention as native
from penstock_kernels.store_kv import FP8

if TYPE_CHECKING:
    from penstock_kernels.gpu.decode_attention import Scoring

Shared = TypeVar("Shared")

# A span of more tokens is a prefill: its own kernel, with taller tiles.
MAX_DECODE_LEN = 8
# Tokens whose visibility a tree's number can hold.
MAX_TREE_LEN = 31


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpans:
    """Which queries see which cache positions, for one step and all layers.

    Span i owns `query_lens[i]` consecutive rows of the queries and sees the first `context_lens[i]` positions of its
    sequence, its own tokens being the last of them. `block_tables`: [num_spans, max_blocks] int32; entries past the
    span's context are never read. `unbatched` computes every span by itself, so that none depends on its company.
    `tree`: [num_tokens] int32 for spans that are trees of drafted tokens: bit i of a token's number says that it sees
    its span's token i. Every token sees all of the context before its span.
    """

    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: torch.Tensor
    block_size: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)

    def shared(self: "AttentionSpans | DecodeSpans", key: Any, build: Callable[[], Shared]) -> Shared:
        """What `build` makes, built once per step: layers of the same window share their work map."""
        if key not in self._shared:
            self._shared[key] = build()
        shared: Shared = self._shared[key]
        return shared


@dataclass(frozen=True, slots=True, eq=False)
class DecodeSpans:
    """Spans of at most MAX_DECODE_LEN tokens whose lengths only the device knows, as a captured graph needs them.

    query_starts: [num_spans + 1] int32, the first row of every span and the end of the last; context_lens: [num_spans]
    int32; block_tables: [num_spans, max_blocks] int32. A span of no tokens or no context owns no row of the result.
    `max_query_len` and `max_context_len` bound all steps that use these tensors. `unbatched` and `tree` as in
    `AttentionSpans`.
    """

    query_starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    block_size: int
    max_query_len: int
    max_context_len: int
    unbatched: bool = False
    tree: torch.Tensor | None = None
    _shared: dict[Any, Any] = field(default_factory=dict)

    shared = AttentionSpans.shared


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    spans: AttentionSpans,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """Causal attention; keys and values of the spans themselves must be stored already.

    query: [num_tokens, num_heads, head_dim], num_tokens = sum(query_lens); caches: [num_blocks, block_size,
    num_kv_heads, head_dim], num_heads a multiple of num_kv_heads. `window`: a query sees itself and the window - 1
    positions before. `soft_cap`: scores become `soft_cap * tanh(score / soft_cap)`. `sinks`: [num_heads] float32, one
    more score per head that takes weight and has no value. A cache of float8_e4m3fn holds numbers divided by its
    scale. Result like query, contiguous. Cache positions outside a span's context are never read into its result,
    whatever they hold.
    """
    op = "paged_attention"
    num_tokens = sum(spans.query_lens)
    require(
        query.dim() == 3 and query.shape[0] == num_tokens,
        f"{op}: query {tuple(query.shape)} for {num_tokens} tokens",
    )
    require(
        all(
            0 <= length <= context
            for length, context in zip(spans.query_lens, spans.context_lens, strict=True)
        ),
        f"{op}: a span is longer than its context",
    )
    require(spans.block_tables.shape[0] == len(spans.query_lens), f"{op}: one row of block_tables per span")
    _check_cache(op, query, key_cache, value_cache, spans.block_size)
    _check_options(op, query, window, soft_cap, sinks)
    longest = max(spans.query_lens, default=0)
    _check_tree(
        op, spans.tree, num_tokens, longest, window, MAX_DECODE_LEN if runs_kernel(query) else MAX_TREE_LEN
    )
    if runs_kernel(query):
        from penstock_kernels.gpu import attention

        scoring = _scoring(scale, window, soft_cap, sinks, key_scale, value_scale)
        return attention.paged_attention(query, key_cache, value_cache, spans, scoring)
    if spans.tree is None and native.supports(query, key_cache):
        work = spans.shared("native", lambda: _native_work(spans))
        return native.attend(query, key_cache, value_cache, work, scale, window, soft_cap, sinks)
    return reference.paged_attention(
        query, key_cache, value_cache, spans, scale, window, soft_cap, sinks, key_scale, value_scale
    )


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    spans: DecodeSpans,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> torch.Tensor:
    """`paged_attention` over spans that only the device knows: no lengths reach the host, the grid does not change."""
    op = "decode_attention"
    require(query.dim() == 3, f"{op}: query {tuple(query.shape)}")
    require(
        0 < spans.max_query_len <= MAX_DECODE_LEN,
        f"{op}: max_query_len {spans.max_query_len} above {MAX_DECODE_LEN}",
    )
    require(
        spans.query_starts.dtype == spans.context_lens.dtype == spans.block_tables.dtype == torch.int32
        and len(spans.query_starts) - 1 == len(spans.context_lens) == len(spans.block_tables),
        f"{op}: query_starts, context_lens and block_tables must be int32 and of as many spans",
    )
    _check_cache(op, query, key_cache, value_cache, spans.block_size)
    _check_options(op, query, window, soft_cap, sinks)
    _check_tree(op, spans.tree, query.shape[0], spans.max_query_len, window, MAX_DECODE_LEN)
    if runs_kernel(query):
        from penstock_kernels.gpu import attention

        scoring = _scoring(scale, window, soft_cap, sinks, key_scale, value_scale)
        return attention.decode_attention(query, key_cache, value_cache, spans, scoring)
    if spans.tree is None and native.supports(query, key_cache):
        arguments = (spans.query_starts, spans.context_lens, spans.block_tables, spans.block_size)
        work = spans.shared("native", lambda: native.work_of(*arguments))
        return native.attend(query, key_cache, value_cache, work, scale, window, soft_cap, sinks)
    return reference.decode_attention(
        query, key_cache, value_cache, spans, scale, window, soft_cap, sinks, key_scale, value_scale
    )


def _native_work(spans: AttentionSpans) -> native.Work:
    starts = torch.tensor([0, *accumulate(spans.query_lens)], dtype=torch.int32)
    contexts = torch.tensor(spans.context_lens, dtype=torch.int32)
    return native.work_of(starts, contexts, spans.block_tables, spans.block_size)


def _scoring(
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
    key_scale: float,
    value_scale: float,
) -> "Scoring":
    from penstock_kernels.gpu.decode_attention import Scoring

    return Scoring(scale, window, soft_cap, sinks, key_scale, value_scale)


def _check_cache(
    op: str, query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, block_size: int
) -> None:
    require(
        key_cache.dim() == 4
        and key_cache.shape == value_cache.shape
        and key_cache.shape[1] == block_size
        and key_cache.shape[3] == query.shape[2]
        and query.shape[1] % key_cache.shape[2] == 0,
        f"{op}: query {tuple(query.shape)} against cache {tuple(key_cache.shape)}",
    )
    require(
        query.stride(2) == 1 and key_cache.stride(3) == 1, f"{op}: the numbers of a head must be contiguous"
    )
    require(key_cache.stride() == value_cache.stride(), f"{op}: the strides of the two caches differ")
    require_same_dtype(op, key_cache=key_cache, value_cache=value_cache)
    require(
        key_cache.dtype in (query.dtype, FP8),
        f"{op}: query {query.dtype} against a cache of {key_cache.dtype}",
    )


def _check_options(
    op: str, query: torch.Tensor, window: int | None, soft_cap: float | None, sinks: torch.Tensor | None
) -> None:
    require(window is None or window > 0, f"{op}: window {window}")
    require(soft_cap is None or soft_cap > 0, f"{op}: soft_cap {soft_cap}")
    if sinks is not None:
        require(
            sinks.shape == query.shape[1:2] and sinks.dtype == torch.float32 and sinks.is_contiguous(),
            f"{op}: sinks must be float32, one per head",
        )


def _check_tree(
    op: str, tree: torch.Tensor | None, num_tokens: int, longest: int, window: int | None, max_len: int
) -> None:
    if tree is None:
        return
    require(window is None, f"{op}: a tree and a window do not go together")
    require(longest <= max_len, f"{op}: a tree of {longest} tokens, {max_len} is the most")
    require(
        tree.shape == (num_tokens,) and tree.dtype == torch.int32 and tree.is_contiguous(),
        f"{op}: tree must be int32, one number per token",
    )
