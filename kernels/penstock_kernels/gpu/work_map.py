"""The work map of decode attention: which part of which sequence every program attends to.

Computed on the device from the lengths there, once per step and reach, and shared by all layers. The number of items
is fixed, so the grid is too and a captured graph stays right as lengths grow. `work_limits` has the arithmetic. Items
of split spans come first: the longest ones start first, and only they have memory for parts.

    spans      A: 5 tiles          B: 2 tiles      C: 1 tile
    items      A 0..3   A 3..5     B 0..2          C 0..1        (idle)
    splits     A: 2 items
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.attention_spans import Reach
from penstock_kernels.gpu.chain import begin, chained
from penstock_kernels.gpu.tiles import DECODE_KEYS
from penstock_kernels.gpu.work_limits import LEAST_TILES, WorkLimits

# Spans whose numbers fit into registers.
_MOST_AT_ONCE = 1024


class WorkMap(NamedTuple):
    """items: [num_items, 4] int32: span (-1: idle), first tile, end tile, first token in the memory for parts (-1: the
    span is one item); splits: [num_splits, 3] int32: span (-1: idle), first token in that memory, number of items.
    """

    items: torch.Tensor
    splits: torch.Tensor
    limits: WorkLimits
    max_query_len: int


@triton.jit
def _tiles_of(query_start_ptr, context_ptr, spans, num_spans, min_query_len, max_query_len, reach,
              HAS_CHUNK: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """Tokens, first and end tile that any query of a span sees; no tiles for spans of other lengths."""
    mask = spans < num_spans
    context_lens = tl.load(context_ptr + spans, mask=mask, other=0)
    starts = tl.load(query_start_ptr + spans, mask=mask, other=0)
    query_lens = tl.load(query_start_ptr + spans + 1, mask=mask, other=0) - starts
    first_query = context_lens - query_lens
    first_seen = first_query // reach * reach if HAS_CHUNK else tl.maximum(first_query + 1 - reach, 0)
    is_wanted = (query_lens >= min_query_len) & (query_lens <= max_query_len)
    end = tl.where(is_wanted, (context_lens + KEYS - 1) // KEYS, 0)
    return query_lens, tl.minimum(first_seen // KEYS, end), end


@triton.jit
def _items_of(num_tiles, wanted, fixed_tiles):
    """Tiles of an item of each span, `wanted` or nearly so, or a fixed number; and the items of each span."""
    shares = tl.maximum((2 * num_tiles + wanted) // (2 * wanted), 1)
    length = (num_tiles + shares - 1) // shares
    if fixed_tiles > 0:
        length = tl.full(num_tiles.shape, fixed_tiles, tl.int32)
    length = tl.maximum(length, 1)
    return length, (num_tiles + length - 1) // length


@triton.jit
def _count_tiles(
    query_start_ptr, context_ptr, num_spans, min_query_len, max_query_len, reach, HAS_CHUNK: tl.constexpr,
    BLOCK_SPANS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The tiles of all spans together."""
    total_tiles = 0
    for start in range(0, num_spans, BLOCK_SPANS):
        spans = start + tl.arange(0, BLOCK_SPANS)
        _, first, end = _tiles_of(
            query_start_ptr, context_ptr, spans, num_spans, min_query_len, max_query_len, reach, HAS_CHUNK,
            KEYS)  # fmt: skip
        total_tiles += tl.sum(end - first, axis=0)
    return total_tiles


@triton.jit
def _count_split_items(
    query_start_ptr, context_ptr, num_spans, min_query_len, max_query_len, reach, wanted, fixed_tiles,
    HAS_CHUNK: tl.constexpr, BLOCK_SPANS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The items of all spans that have more than one."""
    num_split_items = 0
    for start in range(0, num_spans, BLOCK_SPANS):
        spans = start + tl.arange(0, BLOCK_SPANS)
        _, first, end = _tiles_of(
            query_start_ptr, context_ptr, spans, num_spans, min_query_len, max_query_len, reach, HAS_CHUNK,
            KEYS)  # fmt: skip
        _, counts = _items_of(end - first, wanted, fixed_tiles)
        num_split_items += tl.sum(tl.where(counts > 1, counts, 0), axis=0)
    return num_split_items


@triton.jit
def _store_items(items_ptr, num_items, first_item, counts, spans, first, end, length, part, query_lens):
    """The items of each span, from `first_item` on; `part`: -1 where there is only one."""
    for number in range(tl.max(counts, axis=0)):
        items = first_item + number
        is_used = (number < counts) & (items < num_items)
        tile = first + number * length
        tl.store(items_ptr + 4 * items, spans, mask=is_used)
        tl.store(items_ptr + 4 * items + 1, tile, mask=is_used)
        tl.store(items_ptr + 4 * items + 2, tl.minimum(tile + length, end), mask=is_used)
        tl.store(
            items_ptr + 4 * items + 3, tl.where(counts > 1, part + number * query_lens, -1), mask=is_used
        )


@triton.jit
def _store_idle(rows_ptr, first, end, WIDTH: tl.constexpr, BLOCK_ITEMS: tl.constexpr):
    """Rows that nobody got: -1 is the span of none."""
    idle = tl.full([BLOCK_ITEMS], -1, tl.int32)
    for start in range(first, end, BLOCK_ITEMS):
        rows = start + tl.arange(0, BLOCK_ITEMS)
        tl.store(rows_ptr + WIDTH * rows, idle, mask=rows < end)


@triton.jit(
    do_not_specialize=[
        "num_spans", "num_items", "num_splits", "min_query_len", "max_query_len", "reach", "resident", "fixed_tiles",
    ],
    do_not_specialize_on_alignment=["query_start_ptr", "context_ptr"],
)  # fmt: skip
def _work_map_kernel(
    query_start_ptr,
    context_ptr,
    items_ptr,
    splits_ptr,
    num_spans,
    num_items,
    num_splits,
    min_query_len,
    max_query_len,
    reach,
    resident,
    fixed_tiles,
    HAS_CHUNK: tl.constexpr,
    LEAST: tl.constexpr,
    BLOCK_SPANS: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    KEYS: tl.constexpr,
    CHAINED: tl.constexpr,
):
    """One program. Divides every span into items of equal length but for the last, then gives them out: BLOCK_SPANS
    spans at a time, as the numbers of more would not fit into registers."""
    begin(CHAINED)
    total_tiles = _count_tiles(
        query_start_ptr, context_ptr, num_spans, min_query_len, max_query_len, reach, HAS_CHUNK, BLOCK_SPANS,
        KEYS)  # fmt: skip
    # So many that all items run at a time.
    wanted = tl.maximum((total_tiles + resident - 1) // resident, LEAST)
    num_split_items = _count_split_items(
        query_start_ptr, context_ptr, num_spans, min_query_len, max_query_len, reach, wanted, fixed_tiles, HAS_CHUNK,
        BLOCK_SPANS, KEYS)  # fmt: skip
    # What is given out: items of split spans, which come first, of others, split spans, and tokens of parts.
    split_items, whole_items, split_spans, part_tokens = 0, num_split_items, 0, 0
    for start in range(0, num_spans, BLOCK_SPANS):
        spans = start + tl.arange(0, BLOCK_SPANS)
        query_lens, first, end = _tiles_of(
            query_start_ptr, context_ptr, spans, num_spans, min_query_len, max_query_len, reach, HAS_CHUNK,
            KEYS)  # fmt: skip
        length, counts = _items_of(end - first, wanted, fixed_tiles)
        is_split = counts > 1
        # Inclusive sums; what is before a span follows by subtraction.
        split_counts = tl.where(is_split, counts, 0)
        whole_counts = tl.where(is_split, 0, counts)
        tokens = split_counts * query_lens
        part = tl.where(is_split, part_tokens + tl.cumsum(tokens, axis=0) - tokens, -1)
        ranks = split_spans + tl.cumsum(is_split.to(tl.int32), axis=0) - 1
        is_listed = is_split & (ranks < num_splits)
        tl.store(splits_ptr + 3 * ranks, spans, mask=is_listed)
        tl.store(splits_ptr + 3 * ranks + 1, part, mask=is_listed)
        tl.store(splits_ptr + 3 * ranks + 2, counts, mask=is_listed)
        first_split = split_items + tl.cumsum(split_counts, axis=0) - split_counts
        first_whole = whole_items + tl.cumsum(whole_counts, axis=0) - whole_counts
        first_item = tl.where(is_split, first_split, first_whole)
        _store_items(items_ptr, num_items, first_item, counts, spans, first, end, length, part, query_lens)
        split_items += tl.sum(split_counts, axis=0)
        whole_items += tl.sum(whole_counts, axis=0)
        split_spans += tl.sum(is_split.to(tl.int32), axis=0)
        part_tokens += tl.sum(tokens, axis=0)
    _store_idle(items_ptr, whole_items, num_items, 4, BLOCK_ITEMS)
    _store_idle(splits_ptr, split_spans, num_splits, 3, BLOCK_ITEMS)


def block_of(num_spans: int) -> int:
    """64, 256, 1,024 …: each is a variant that is compiled at the start."""
    block = 64
    while block < num_spans:
        block *= 4
    return block


def work_map(
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    query_lens: tuple[int, int],
    reach: Reach,
    limits: WorkLimits,
) -> WorkMap:
    """The work map of the spans whose number of tokens is in `query_lens`, both ends included; `limits` must cover all.

    query_starts: [num_spans + 1] int32; context_lens: [num_spans] int32.
    """
    num_spans, device = context_lens.shape[0], context_lens.device
    items = torch.empty((limits.num_items, 4), dtype=torch.int32, device=device)
    splits = torch.empty((limits.num_splits, 3), dtype=torch.int32, device=device)
    _work_map_kernel[(1,)](
        query_starts,
        context_lens,
        items,
        splits,
        num_spans,
        limits.num_items,
        limits.num_splits,
        *query_lens,
        reach.window or reach.chunk or 2**30,
        limits.resident,
        limits.fixed_tiles,
        HAS_CHUNK=reach.chunk is not None,
        LEAST=LEAST_TILES,
        BLOCK_SPANS=min(block_of(num_spans), _MOST_AT_ONCE),
        BLOCK_ITEMS=256,
        KEYS=DECODE_KEYS,
        num_warps=4,
        **chained(device),
    )
    return WorkMap(items, splits, limits, query_lens[1])
