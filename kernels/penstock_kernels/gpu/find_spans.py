"""Reads the inputs of a step from the rows of its slots in one launch; otherwise they are a dozen small kernels.

Some programs do tokens, the others a span each, whose block table they copy as far as its context goes.
"""

import torch
import triton
import triton.language as tl

from penstock_kernels.base.results import Decodes, FoundSpans
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.work_map import block_of

# Tokens of a program, and entries of a block table that it copies at the same time. Unmeasured.
_BLOCK_TOKENS = 32
_BLOCK_ENTRIES: tl.constexpr = tl.constexpr(1024)


@triton.jit
def _spans_of(rows, len_ptr, num_spans, BLOCK_SPANS: tl.constexpr):
    """The span of every row, num_spans or more behind the last, and the first row of that span."""
    spans = tl.arange(0, BLOCK_SPANS)
    ends = tl.cumsum(tl.load(len_ptr + spans, mask=spans < num_spans, other=0).to(tl.int32), axis=0)
    is_before = ends[None, :] <= rows[:, None]
    found = tl.sum(is_before.to(tl.int32), axis=1)
    return found, tl.max(tl.where(is_before, ends[None, :], 0), axis=1)


@triton.jit
def _find_tokens(program, slot_ptr, start_ptr, len_ptr, token_ptr, table_ptr, id_ptr, position_ptr,
                 cache_position_ptr, num_tokens, num_spans, stride_tokens, stride_table, spare,
                 BLOCK_SIZE: tl.constexpr, ONE_EACH: tl.constexpr, BLOCK_SPANS: tl.constexpr,
                 BLOCK_TOKENS: tl.constexpr):  # fmt: skip
    rows = program * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    is_row = rows < num_tokens
    if ONE_EACH:
        span, first = rows, rows
    else:
        span, first = _spans_of(rows, len_ptr, num_spans, BLOCK_SPANS)
    is_real = is_row & (span < num_spans)
    slots = tl.load(slot_ptr + span, mask=is_real, other=0)
    slots = tl.where(is_real, slots, spare)
    starts = tl.load(start_ptr + span, mask=is_real, other=0)
    positions = tl.where(is_real, starts + rows - first, 0)
    ids = tl.load(token_ptr + slots * stride_tokens + positions, mask=is_row, other=0)
    blocks = tl.load(table_ptr + slots * stride_table + positions // BLOCK_SIZE, mask=is_row, other=0)
    tl.store(id_ptr + rows, ids.to(tl.int64), mask=is_row)
    tl.store(
        cache_position_ptr + rows, blocks.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE, mask=is_row
    )
    if not ONE_EACH:
        tl.store(position_ptr + rows, positions, mask=is_row)


@triton.jit
def _find_span(span, slot_ptr, start_ptr, len_ptr, table_ptr, query_start_ptr, context_ptr, out_table_ptr, num_spans,
               stride_table, num_blocks, spare, BLOCK_SIZE: tl.constexpr, ONE_EACH: tl.constexpr,
               BLOCK_SPANS: tl.constexpr):  # fmt: skip
    slot = tl.load(slot_ptr + span)
    length = tl.where(slot == spare, 0, 1).to(tl.int64)
    if not ONE_EACH:
        length = tl.load(len_ptr + span)
        spans = tl.arange(0, BLOCK_SPANS)
        lens = tl.load(len_ptr + spans, mask=spans < num_spans, other=0).to(tl.int32)
        tl.store(query_start_ptr + span + 1, tl.sum(tl.where(spans <= span, lens, 0), axis=0))
        if span == 0:
            tl.store(query_start_ptr, 0)
    context = tl.where(length > 0, tl.load(start_ptr + span) + length, 0)
    tl.store(context_ptr + span, context.to(tl.int32))
    num_used = (context + BLOCK_SIZE - 1) // BLOCK_SIZE
    for first in range(0, num_used, _BLOCK_ENTRIES):
        entries = first + tl.arange(0, _BLOCK_ENTRIES)
        is_used = entries < num_used
        blocks = tl.load(table_ptr + slot * stride_table + entries, mask=is_used, other=0)
        tl.store(out_table_ptr + span.to(tl.int64) * num_blocks + entries, blocks, mask=is_used)


@triton.jit(
    do_not_specialize=["num_tokens", "num_spans", "spare"],
    do_not_specialize_on_alignment=["slot_ptr", "start_ptr", "len_ptr", "token_ptr"],
)
def _find_spans_kernel(slot_ptr, start_ptr, len_ptr, token_ptr, table_ptr, id_ptr, position_ptr, cache_position_ptr,
                       query_start_ptr, context_ptr, out_table_ptr, num_tokens, num_spans, stride_tokens,
                       stride_table, num_blocks, spare, BLOCK_SIZE: tl.constexpr, ONE_EACH: tl.constexpr,
                       BLOCK_SPANS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, CHAINED: tl.constexpr):  # fmt: skip
    """ONE_EACH: every row is a span, and those of the spare slot have no context."""
    begin(CHAINED)
    program = tl.program_id(0)
    if program < num_spans:
        _find_span(program, slot_ptr, start_ptr, len_ptr, table_ptr, query_start_ptr, context_ptr, out_table_ptr,
                   num_spans, stride_table, num_blocks, spare, BLOCK_SIZE, ONE_EACH, BLOCK_SPANS)  # fmt: skip
    else:
        _find_tokens(program - num_spans, slot_ptr, start_ptr, len_ptr, token_ptr, table_ptr, id_ptr, position_ptr,
                     cache_position_ptr, num_tokens, num_spans, stride_tokens, stride_table, spare, BLOCK_SIZE,
                     ONE_EACH, BLOCK_SPANS, BLOCK_TOKENS)  # fmt: skip


def find_spans(
    slots: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    num_tokens: int,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
) -> FoundSpans:
    found = _empty(len(slots), num_tokens, block_table)
    _find(slots, starts, lens, tokens, block_table, found, block_size, spare)
    return found


def find_decodes(
    slots: torch.Tensor,
    positions: torch.Tensor,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    spare: int,
    max_span_len: int,
) -> Decodes:
    assert max_span_len == 1, "the table has a condition"
    found = _empty(len(slots), len(slots), block_table)
    if len(slots):
        _find(slots, positions, None, tokens, block_table, found, block_size, spare)
    return Decodes(found.token_ids, found.cache_positions, found.context_lens, found.block_tables, None)


def _empty(num_spans: int, num_tokens: int, block_table: torch.Tensor) -> FoundSpans:
    device, short = block_table.device, torch.int32
    ids, positions, cache_positions = (
        torch.empty(num_tokens, dtype=torch.int64, device=device) for _ in range(3)
    )
    return FoundSpans(
        ids,
        positions,
        cache_positions,
        torch.empty(num_spans + 1, dtype=short, device=device),
        torch.empty(num_spans, dtype=short, device=device),
        torch.empty((num_spans, block_table.shape[1]), dtype=short, device=device),
    )


def _find(
    slots: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor | None,
    tokens: torch.Tensor,
    block_table: torch.Tensor,
    found: FoundSpans,
    block_size: int,
    spare: int,
) -> None:
    """`lens`: None where every span has one token."""
    num_spans, num_tokens = len(slots), len(found.token_ids)
    _find_spans_kernel[(num_spans + triton.cdiv(num_tokens, _BLOCK_TOKENS),)](
        slots,
        starts,
        slots if lens is None else lens,
        tokens,
        block_table,
        *found,
        num_tokens,
        num_spans,
        tokens.stride(0),
        block_table.stride(0),
        block_table.shape[1],
        spare,
        BLOCK_SIZE=block_size,
        ONE_EACH=lens is None,
        BLOCK_SPANS=64 if lens is None else block_of(num_spans),
        BLOCK_TOKENS=_BLOCK_TOKENS,
        num_warps=4,
        **chained(slots.device),
    )
