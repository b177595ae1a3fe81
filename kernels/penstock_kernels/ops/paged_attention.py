"""Attention of several spans of queries over a paged KV cache.

Cache layout: [num_blocks, block_size, num_kv_heads, head_dim] for keys and values each. One token's heads lie side by
side, so that storing a token is one contiguous copy on the CPU, a gather by position moves whole rows, and a kernel
that computes one head reads rows of head_dim numbers (256 bytes in bf16 at 128), full memory transactions on a GPU.
"""

from operator import le

import torch

from penstock_kernels import table
from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    MAX_TREE_LEN,
    Attend,
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Scoring,
)
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.destination import FP8
from penstock_kernels.base.devices import runs_kernels

# Our own implementation for the device.
own_attention: Attend = table.paged_attention


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    scoring: Scoring,
    attend: Attend | None = None,
) -> torch.Tensor:
    """Causal attention; keys and values of the spans themselves must be stored already.

    query: [num_tokens, num_heads, head_dim], num_tokens = sum(query_lens); caches: [num_blocks, block_size,
    num_kv_heads, head_dim], num_heads a multiple of num_kv_heads. With `DecodeSpans` the host reads no lengths and the
    grid does not change. `attend`: the implementation (see `backends`), by default our own. Result like query,
    contiguous. Cache positions outside a span's context are never read into its result, whatever they hold.
    """
    arguments = AttentionArguments(query, key_cache, value_cache, spans, scoring)
    _check_spans(spans, query)
    _check_cache(arguments)
    _check_scoring(arguments)
    return (attend or own_attention)(arguments)


def attention_parts_bytes(
    device: torch.device,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    num_spans: int,
    num_tokens: int,
    max_context_len: int,
    unbatched: bool = False,
) -> int:
    """Bytes that our attention takes at most in one layer beside its result, for the parts of sequences that several
    programs read; free again when the layer has been computed. 0 where no kernel runs.

    A bound for every step of up to `num_spans` spans of at most 8 tokens, with up to `num_tokens` tokens together, over
    block tables of `max_context_len` positions (blocks times block size), in a graph and out of one. Heads are those of
    this rank. `unbatched` as in `AttentionSpans`.
    """
    if not runs_kernels(device):
        return 0
    found: int = table.launcher("attention.attention_parts_bytes")(
        device, num_heads, num_kv_heads, head_dim, num_spans, num_tokens, max_context_len, unbatched
    )
    return found


def _check_spans(spans: AttentionSpans | DecodeSpans, query: torch.Tensor) -> None:
    require(query.dim() == 3, lambda: f"paged_attention: query {tuple(query.shape)}")
    most = MAX_DECODE_LEN if spans.tree is None or runs_kernels(query.device) else MAX_TREE_LEN
    longest = _check_decodes(spans, most) if isinstance(spans, DecodeSpans) else _check_lens(spans, query)
    if spans.tree is not None:
        _check_tree(spans.tree, query, longest, most)


def _check_lens(spans: AttentionSpans, query: torch.Tensor) -> int:
    """The most tokens of a span."""
    num_tokens, num_spans = sum(spans.query_lens), len(spans.query_lens)
    require(len(spans.context_lens) == num_spans, "paged_attention: one context_len per span")
    # Without a step of Python for each span: a step of decodes has hundreds, in every layer.
    require(
        min(spans.query_lens, default=0) >= 0 and all(map(le, spans.query_lens, spans.context_lens)),
        "paged_attention: a span is longer than its context",
    )
    require(spans.block_tables.shape[0] == num_spans, "paged_attention: one row of block_tables per span")
    require(
        query.shape[0] == num_tokens,
        lambda: f"paged_attention: query {tuple(query.shape)} for {num_tokens} tokens",
    )
    return max(spans.query_lens, default=0)


def _check_decodes(spans: DecodeSpans, most: int) -> int:
    """The most tokens of a span."""
    require(
        0 < spans.max_query_len <= most,
        lambda: f"paged_attention: max_query_len {spans.max_query_len} above {most}",
    )
    require(
        spans.query_starts.dtype == spans.context_lens.dtype == spans.block_tables.dtype == torch.int32
        and len(spans.query_starts) - 1 == len(spans.context_lens) == len(spans.block_tables),
        "paged_attention: query_starts, context_lens and block_tables must be int32 and of as many spans",
    )
    require(
        0 <= spans.num_prompts <= len(spans.context_lens) and (spans.tree is None or spans.num_prompts == 0),
        lambda: (
            f"paged_attention: {spans.num_prompts} prompts of {len(spans.context_lens)} spans, and none with a tree"
        ),
    )
    return spans.max_query_len


def _check_tree(tree: torch.Tensor, query: torch.Tensor, longest: int, most: int) -> None:
    require(longest <= most, lambda: f"paged_attention: a tree of {longest} tokens, {most} is the most")
    require(
        tree.shape == query.shape[:1] and tree.dtype == torch.int32 and tree.is_contiguous(),
        "paged_attention: tree must be int32, one number per token",
    )


def _check_cache(given: AttentionArguments) -> None:
    query, key_cache, value_cache = given.query, given.key_cache, given.value_cache
    require(
        key_cache.dim() == 4
        and key_cache.shape == value_cache.shape
        and key_cache.shape[1] == given.spans.block_size
        and key_cache.shape[3] == query.shape[2]
        and query.shape[1] % key_cache.shape[2] == 0,
        lambda: f"paged_attention: query {tuple(query.shape)} against cache {tuple(key_cache.shape)}",
    )
    require(
        query.stride(2) == 1 and key_cache.stride(3) == 1,
        "paged_attention: the numbers of a head must be contiguous",
    )
    require(
        key_cache.stride() == value_cache.stride(), "paged_attention: the strides of the two caches differ"
    )
    require_same_dtype("paged_attention", key_cache=key_cache, value_cache=value_cache)
    require(
        key_cache.dtype in (query.dtype, FP8),
        lambda: f"paged_attention: query {query.dtype} against a cache of {key_cache.dtype}",
    )


def _check_scoring(given: AttentionArguments) -> None:
    window, soft_cap, sinks = given.scoring.window, given.scoring.soft_cap, given.scoring.sinks
    require(window is None or window > 0, lambda: f"paged_attention: window {window}")
    require(soft_cap is None or soft_cap > 0, lambda: f"paged_attention: soft_cap {soft_cap}")
    require(
        sinks is None
        or (sinks.shape == given.query.shape[1:2] and sinks.dtype == torch.float32 and sinks.is_contiguous()),
        "paged_attention: sinks must be float32, one per head",
    )
    slopes = given.scoring.slopes
    require(
        slopes is None
        or (
            slopes.shape == given.query.shape[1:2]
            and slopes.dtype == torch.float32
            and slopes.is_contiguous()
        ),
        "paged_attention: slopes must be float32, one per head",
    )
    require(
        slopes is None or given.spans.tree is None, "paged_attention: a tree and slopes do not go together"
    )
    require(
        window is None or given.spans.tree is None,
        "paged_attention: a tree and a window do not go together",
    )
    chunk = given.scoring.chunk
    require(
        chunk is None or (chunk > 0 and window is None and given.spans.tree is None),
        lambda: f"paged_attention: chunk {chunk} must be positive, without a window or a tree",
    )
