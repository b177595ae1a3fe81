"""Paged attention in C: reads keys and values in the cache itself; the reference gathers them first."""

import ctypes
from dataclasses import dataclass
from functools import cache

import torch

from penstock_kernels.base.attention_spans import AttentionArguments, AttentionSpans, DecodeSpans, Scoring
from penstock_kernels.native.library import DTYPES, library, run


class _Call(ctypes.Structure):
    """`Attention` of src/attention.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "output", "key", "value")),
        *((name, ctypes.c_void_p) for name in ("query_starts", "context_lens", "tables", "sinks")),
        *((name, ctypes.c_int64) for name in ("table_stride", "query_token_stride", "query_head_stride")),
        *((name, ctypes.c_int64) for name in ("block_stride", "position_stride", "head_stride")),
        *((f"value_{name}_stride", ctypes.c_int64) for name in ("block", "position", "head")),
        *((name, ctypes.c_int32) for name in ("num_spans", "num_heads", "num_kv_heads")),
        *((name, ctypes.c_int32) for name in ("head_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("block_size", "window", "dtype", "num_threads")),
        ("max_lanes", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("scale", "soft_cap")),
        ("slopes", ctypes.c_void_p),
        ("chunk", ctypes.c_int32),
        ("tree", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """The spans of a step, for all layers: int32 tensors on the CPU."""

    query_starts: torch.Tensor  # [num_spans + 1]
    context_lens: torch.Tensor  # [num_spans]
    tables: torch.Tensor  # [num_spans, max_blocks]
    block_size: int


def _work_of(spans: AttentionSpans | DecodeSpans) -> Work:
    return spans.shared("native", lambda: _work(spans))


def _work(spans: AttentionSpans | DecodeSpans) -> Work:
    starts, contexts, tables = spans.query_starts, spans.context_lens, spans.block_tables
    query_starts = torch.as_tensor(starts, dtype=torch.int32).contiguous()
    context_lens = torch.as_tensor(contexts, dtype=torch.int32).contiguous()
    tables = tables if tables.stride(1) == 1 else tables.contiguous()
    return Work(query_starts, context_lens, tables, spans.block_size)


@cache
def can_hold(head_dim: int, value_dim: int, group: int) -> bool:
    """Whether it is compiled, for keys and values of so many numbers and so many query heads of a key head."""
    compiled = library()
    return compiled is not None and bool(compiled.penstock_can_attend(head_dim, value_dim, group))


def supports(arguments: AttentionArguments) -> bool:
    """Whether `paged_attention` can take these."""
    query, cache = arguments.query, arguments.key_cache
    return can_attend(query.dtype, cache.dtype, query.shape[2], arguments.group)


def can_attend(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, group: int) -> bool:
    """Whether it is compiled, for such heads and types."""
    return dtype == cache_dtype and dtype in DTYPES and can_hold(head_dim, head_dim, group)


def paged_attention(arguments: AttentionArguments, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. A row's bits do not depend on what else is computed.

    `max_lanes` is for tests: 4 or 8 choose what a processor with shorter vectors would run.
    """
    caches = arguments.key_cache, arguments.value_cache
    return attend(arguments.query, *caches, arguments.spans, arguments.scoring, max_lanes)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spans: AttentionSpans | DecodeSpans,
    scoring: Scoring,
    max_lanes: int,
) -> torch.Tensor:
    """[num_tokens, num_heads, value_dim]. key: [num_blocks, block_size, num_kv_heads, head_dim]; value: the same with
    value_dim. Both in any strides but of the last dimension; value may be the beginning of key.
    """
    work = _work_of(spans)
    output = torch.empty(*query.shape[:2], value.shape[3], dtype=query.dtype)
    call = _Call(
        query.data_ptr(),
        output.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        work.query_starts.data_ptr(),
        work.context_lens.data_ptr(),
        work.tables.data_ptr(),
        None if scoring.sinks is None else scoring.sinks.data_ptr(),
        work.tables.stride(0),
        *query.stride()[:2],
        *key.stride()[:3],
        *value.stride()[:3],
        len(work.context_lens),
        query.shape[1],
        *key.shape[2:],
        value.shape[3],
        work.block_size,
        scoring.window or 0,
        DTYPES[query.dtype],
        torch.get_num_threads(),
        max_lanes,
        scoring.scale,
        scoring.soft_cap or 0.0,
        None if scoring.slopes is None else scoring.slopes.data_ptr(),
        scoring.chunk or 0,
        None if spans.tree is None else spans.tree.data_ptr(),
    )
    kept = (query, output, key, value, work, scoring.sinks, scoring.slopes, spans.tree)
    run("penstock_attend", call, *kept, failure=lambda: MemoryError("no memory for the work of attention"))
    return output
