"""The work map of decode attention: which part of which sequence every program attends to.

Computed on the device from the lengths there, once per step and window, and shared by all layers. The number of items
is fixed, so the grid is too and a captured graph stays right as lengths grow.

    spans      A: 5 tiles          B: 2 tiles      C: 1 tile
    items      A 0..3   A 3..5     B 0..2          C 0..1        (idle)     with 3 tiles an item
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.gpu.tiles import DECODE_KEYS


class WorkMap(NamedTuple):
    """items: [num_items, 3] int32: span (-1: idle), first tile, end tile; splits: [num_spans, 2] int32: first item and
    number of items of a span. `may_split` is false when every span is known to have one item."""

    items: torch.Tensor
    splits: torch.Tensor
    may_split: bool


@triton.jit
def _tiles_of(query_start_ptr, context_ptr, spans, num_spans, max_query_len, window, KEYS: tl.constexpr):
    """First and end tile that any query of a span sees; none for empty spans and for those that are no decodes."""
    mask = spans < num_spans
    context_lens = tl.load(context_ptr + spans, mask=mask, other=0)
    starts = tl.load(query_start_ptr + spans, mask=mask, other=0)
    query_lens = tl.load(query_start_ptr + spans + 1, mask=mask, other=0) - starts
    first_seen = tl.maximum(context_lens - query_lens + 1 - window, 0)
    is_decode = (query_lens > 0) & (query_lens <= max_query_len)
    end = tl.where(is_decode, (context_lens + KEYS - 1) // KEYS, 0)
    return tl.minimum(first_seen // KEYS, end), end


@triton.jit
def _work_map_kernel(
    query_start_ptr,
    context_ptr,
    items_ptr,
    splits_ptr,
    num_spans,
    num_items,
    max_query_len,
    window,
    fixed_tiles,
    BLOCK_SPANS: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One program. Finds the fewest tiles per item whose items fit, by bisection, then gives them out in order."""
    spans = tl.arange(0, BLOCK_SPANS)
    first, end = _tiles_of(query_start_ptr, context_ptr, spans, num_spans, max_query_len, window, KEYS)
    num_tiles = end - first
    low = 1
    high = tl.maximum(tl.max(num_tiles, axis=0), 1)
    if fixed_tiles > 0:
        low = tl.maximum(fixed_tiles, 1)
        high = low
    while low < high:
        middle = (low + high) // 2
        needed = tl.sum((num_tiles + middle - 1) // middle, axis=0)
        low = tl.where(needed <= num_items, low, middle + 1)
        high = tl.where(needed <= num_items, middle, high)
    num_splits = (num_tiles + low - 1) // low
    ends = tl.cumsum(num_splits, axis=0)
    mask = spans < num_spans
    tl.store(splits_ptr + 2 * spans, ends - num_splits, mask=mask)
    tl.store(splits_ptr + 2 * spans + 1, num_splits, mask=mask)
    for start in range(0, num_items, BLOCK_ITEMS):
        items = start + tl.arange(0, BLOCK_ITEMS)
        tl.store(items_ptr + 3 * items, tl.full([BLOCK_ITEMS], -1, tl.int32), mask=items < num_items)
    tl.debug_barrier()
    most = tl.max(num_splits, axis=0)
    for split in range(most):
        items = ends - num_splits + split
        is_used = (split < num_splits) & (items < num_items)
        tile = first + split * low
        tl.store(items_ptr + 3 * items, spans, mask=is_used)
        tl.store(items_ptr + 3 * items + 1, tile, mask=is_used)
        tl.store(items_ptr + 3 * items + 2, tl.minimum(tile + low, end), mask=is_used)


def work_map(
    query_starts: torch.Tensor,
    context_lens: torch.Tensor,
    max_query_len: int,
    num_items: int,
    window: int | None,
    may_split: bool,
    fixed_tiles: int = 0,
) -> WorkMap:
    """query_starts: [num_spans + 1] int32; context_lens: [num_spans] int32; num_items: at least the number of decodes,
    which are the spans of at most max_query_len tokens.

    `fixed_tiles` makes splits independent of the other spans; num_items must then be enough for all.
    """
    num_spans, device = context_lens.shape[0], context_lens.device
    items = torch.empty((num_items, 3), dtype=torch.int32, device=device)
    splits = torch.empty((num_spans, 2), dtype=torch.int32, device=device)
    _work_map_kernel[(1,)](
        query_starts,
        context_lens,
        items,
        splits,
        num_spans,
        num_items,
        max_query_len,
        2**30 if window is None else window,
        fixed_tiles,
        BLOCK_SPANS=triton.next_power_of_2(num_spans),
        BLOCK_ITEMS=256,
        KEYS=DECODE_KEYS,
        num_warps=4,
    )
    return WorkMap(items, splits, may_split)
