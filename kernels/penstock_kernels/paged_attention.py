"""Attention of several spans of queries over a paged KV cache.

Cache layout: [num_blocks, block_size, num_kv_heads, head_dim] for keys and values each. One token's heads lie side by
side, so that storing a token is one contiguous copy on the CPU, a gather by position moves whole rows, and a kernel
that walks one head reads rows of head_dim numbers (256 bytes in bf16 at 128), full memory transactions on a GPU.
"""

from itertools import accumulate

import torch

from penstock_kernels import reference
from penstock_kernels.attention_spans import (
    MAX_DECODE_LEN,
    MAX_TREE_LEN,
    AttentionSpans,
    DecodeSpans,
    Scoring,
)
from penstock_kernels.checks import require, require_same_dtype
from penstock_kernels.dispatch import runs_kernel
from penstock_kernels.native import attention as native
from penstock_kernels.store_kv import FP8


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
    num_tokens = sum(spans.query_lens)
    lens = list(zip(spans.query_lens, spans.context_lens, strict=True))
    require(
        all(0 <= length <= context for length, context in lens),
        "paged_attention: a span is longer than its context",
    )
    require(spans.block_tables.shape[0] == len(lens), "paged_attention: one row of block_tables per span")
    require(
        query.dim() == 3 and query.shape[0] == num_tokens,
        f"paged_attention: query {tuple(query.shape)} for {num_tokens} tokens",
    )
    longest = max(spans.query_lens, default=0)
    scoring = Scoring(scale, window, soft_cap, sinks, key_scale, value_scale)
    _check("paged_attention", query, key_cache, value_cache, spans, scoring, longest)
    if runs_kernel(query):
        from penstock_kernels.gpu import attention

        return attention.paged_attention(query, key_cache, value_cache, spans, scoring)
    if spans.tree is None and native.supports(query, key_cache):
        work = spans.shared("native", lambda: _native_work(spans))
        return native.attend(query, key_cache, value_cache, work, scoring)
    return reference.paged_attention(query, key_cache, value_cache, spans, scoring)


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
    require(query.dim() == 3, f"decode_attention: query {tuple(query.shape)}")
    require(
        0 < spans.max_query_len <= MAX_DECODE_LEN,
        f"decode_attention: max_query_len {spans.max_query_len} above {MAX_DECODE_LEN}",
    )
    require(
        spans.query_starts.dtype == spans.context_lens.dtype == spans.block_tables.dtype == torch.int32
        and len(spans.query_starts) - 1 == len(spans.context_lens) == len(spans.block_tables),
        "decode_attention: query_starts, context_lens and block_tables must be int32 and of as many spans",
    )
    scoring = Scoring(scale, window, soft_cap, sinks, key_scale, value_scale)
    _check("decode_attention", query, key_cache, value_cache, spans, scoring, spans.max_query_len)
    if runs_kernel(query):
        from penstock_kernels.gpu import attention

        return attention.decode_attention(query, key_cache, value_cache, spans, scoring)
    if spans.tree is None and native.supports(query, key_cache):
        arguments = (spans.query_starts, spans.context_lens, spans.block_tables, spans.block_size)
        work = spans.shared("native", lambda: native.work_of(*arguments))
        return native.attend(query, key_cache, value_cache, work, scoring)
    return reference.decode_attention(query, key_cache, value_cache, spans, scoring)


def _native_work(spans: AttentionSpans) -> native.Work:
    starts = torch.tensor([0, *accumulate(spans.query_lens)], dtype=torch.int32)
    contexts = torch.tensor(spans.context_lens, dtype=torch.int32)
    return native.work_of(starts, contexts, spans.block_tables, spans.block_size)


def _check(
    op: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    scoring: Scoring,
    longest: int,
) -> None:
    """What both ops ask of their arguments. longest: the most tokens of a span."""
    _check_cache(op, query, key_cache, value_cache, spans.block_size)
    require(scoring.window is None or scoring.window > 0, f"{op}: window {scoring.window}")
    require(scoring.soft_cap is None or scoring.soft_cap > 0, f"{op}: soft_cap {scoring.soft_cap}")
    if (sinks := scoring.sinks) is not None:
        require(
            sinks.shape == query.shape[1:2] and sinks.dtype == torch.float32 and sinks.is_contiguous(),
            f"{op}: sinks must be float32, one per head",
        )
    if spans.tree is not None:
        require(scoring.window is None, f"{op}: a tree and a window do not go together")
        _check_tree(op, spans.tree, query, longest)


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


def _check_tree(op: str, tree: torch.Tensor, query: torch.Tensor, longest: int) -> None:
    max_len = MAX_DECODE_LEN if runs_kernel(query) else MAX_TREE_LEN
    require(longest <= max_len, f"{op}: a tree of {longest} tokens, {max_len} is the most")
    require(
        tree.shape == query.shape[:1] and tree.dtype == torch.int32 and tree.is_contiguous(),
        f"{op}: tree must be int32, one number per token",
    )
