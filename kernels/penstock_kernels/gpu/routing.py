"""Which experts a token gets, and which tokens an expert gets: decided and sorted on the device.

The grouped products need a grid that the host knows, whatever was chosen: every expert with tokens leaves at most one
tile unfilled, so there are at most `ceil(num_pairs / rows) + num_experts` tiles. Those beyond the last are idle.

    pairs by expert    A A A A A | B | (C none) | D D D      a pair: one token and one of its choices
    tiles of 4 rows    A 0..4   A 4..5   B 5..6   D 6..9     (idle) …
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.results import Routes
from penstock_kernels.base.routing import PLAIN, Routing

# Rows of a program that chooses. Unmeasured.
_BLOCK_TOKENS = 4
# Pairs that one step of the sort looks at: few where a step has no more, and two variants. Unmeasured.
_FEW_PAIRS, _MANY_PAIRS = 128, 2048
# Tiles of a program of the map. Unmeasured.
_BLOCK_TILES = 32


class ExpertTiles(NamedTuple):
    """order: [num_pairs] int32, the pairs by expert; pair p is choice p % top_k of token p // top_k.
    tiles: [num_tiles, 3] int32: expert (-1: idle), first and end place in `order`, at most `rows` apart."""

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int


@triton.jit(do_not_specialize=["num_tokens"])
def _route_kernel(
    logits_ptr,
    weight_ptr,
    id_ptr,
    num_tokens,
    stride_token,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    NORMALIZED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Softmax, then the largest TOP_K one after the other: of equal ones the smallest id."""
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    experts, choices = tl.arange(0, BLOCK_EXPERTS), tl.arange(0, BLOCK_K)
    is_token = tokens < num_tokens
    mask = is_token[:, None] & (experts < NUM_EXPERTS)[None, :]
    ptrs = logits_ptr + tokens[:, None] * stride_token + experts[None, :]
    logits = tl.load(ptrs, mask=mask, other=float("-inf")).to(tl.float32)
    logits = tl.where(is_token[:, None], logits, 0.0)
    mass = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    left = mass / tl.sum(mass, axis=1)[:, None]
    weights = tl.zeros([BLOCK_TOKENS, BLOCK_K], tl.float32)
    ids = tl.zeros([BLOCK_TOKENS, BLOCK_K], tl.int32)
    for choice in tl.static_range(TOP_K):
        # -1 is what was taken already. A row of NaN still gets ids of experts, and NaN as its weights.
        largest = tl.max(left, axis=1)
        found = tl.min(tl.where(left == largest[:, None], experts[None, :], NUM_EXPERTS - 1), axis=1)
        ids = tl.where((choices == choice)[None, :], found[:, None], ids)
        weights = tl.where((choices == choice)[None, :], largest[:, None], weights)
        left = tl.where(experts[None, :] == found[:, None], -1.0, left)
    if NORMALIZED:
        weights = weights / tl.sum(weights, axis=1)[:, None]
    places = tokens[:, None] * TOP_K + choices[None, :]
    chosen = is_token[:, None] & (choices < TOP_K)[None, :]
    tl.store(weight_ptr + places, weights, mask=chosen)
    tl.store(id_ptr + places, ids.to(tl.int64), mask=chosen)


@triton.jit(do_not_specialize=["num_pairs", "first_expert"], do_not_specialize_on_alignment=["id_ptr"])
def _sort_pairs_kernel(id_ptr, start_ptr, order_ptr, num_pairs, first_expert, BLOCK: tl.constexpr):
    """One expert: where its pairs begin, which is how many have smaller ids; then its pairs, in order. The last program
    finds where those of the last expert end."""
    expert = first_expert + tl.program_id(0)
    before = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_pairs, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        ids = tl.load(id_ptr + pairs, mask=pairs < num_pairs, other=2**30)
        before += (ids < expert).to(tl.int32)
    place = tl.sum(before, axis=0)
    tl.store(start_ptr + tl.program_id(0), place)
    if tl.program_id(0) == tl.num_programs(0) - 1:
        return
    for first in range(0, num_pairs, BLOCK):
        pairs = first + tl.arange(0, BLOCK)
        ids = tl.load(id_ptr + pairs, mask=pairs < num_pairs, other=2**30)
        is_mine = (ids == expert).to(tl.int32)
        places = place + tl.cumsum(is_mine, axis=0) - 1
        tl.store(order_ptr + places, pairs, mask=is_mine != 0)
        place += tl.sum(is_mine, axis=0)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _expert_tiles_kernel(
    start_ptr,
    tile_ptr,
    num_pairs,
    num_tiles,
    NUM_EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
):
    tiles = tl.program_id(0) * BLOCK_TILES + tl.arange(0, BLOCK_TILES)
    experts = tl.arange(0, BLOCK_EXPERTS)
    starts = tl.load(start_ptr + experts, mask=experts < NUM_EXPERTS, other=num_pairs)
    ends = tl.load(start_ptr + experts + 1, mask=experts < NUM_EXPERTS, other=num_pairs)
    counts = (ends - starts + ROWS - 1) // ROWS
    end_tiles = tl.cumsum(counts, axis=0)
    # The expert of a tile is the number of those that end before it.
    expert = tl.sum((end_tiles[None, :] <= tiles[:, None]).to(tl.int32), axis=1)
    is_mine = experts[None, :] == expert[:, None]
    number = tiles - tl.sum(tl.where(is_mine, (end_tiles - counts)[None, :], 0), axis=1)
    first = tl.sum(tl.where(is_mine, starts[None, :], 0), axis=1) + number * ROWS
    end = tl.minimum(first + ROWS, tl.sum(tl.where(is_mine, ends[None, :], 0), axis=1))
    mask = tiles < num_tiles
    tl.store(tile_ptr + 3 * tiles, tl.where(expert < NUM_EXPERTS, expert, -1), mask=mask)
    tl.store(tile_ptr + 3 * tiles + 1, first, mask=mask)
    tl.store(tile_ptr + 3 * tiles + 2, end, mask=mask)


def route(
    logits: torch.Tensor,
    top_k: int,
    normalized: bool,
    correction: torch.Tensor | None = None,
    routing: Routing = PLAIN,
) -> Routes:
    """The plain choice: `table` sends others to the reference."""
    assert correction is None, "the table has a condition"
    assert routing == PLAIN, "the table has a condition"
    num_tokens, num_experts = logits.shape
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    if num_tokens:
        _route_kernel[(triton.cdiv(num_tokens, _BLOCK_TOKENS),)](
            logits,
            weights,
            ids,
            num_tokens,
            logits.stride(0),
            NUM_EXPERTS=num_experts,
            TOP_K=top_k,
            NORMALIZED=normalized,
            BLOCK_TOKENS=_BLOCK_TOKENS,
            BLOCK_EXPERTS=triton.next_power_of_2(num_experts),
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=4,
        )
    return Routes(weights, ids)


def expert_tiles(expert_ids: torch.Tensor, num_experts: int, rows: int, first_expert: int = 0) -> ExpertTiles:
    """Of the experts from the first on, which tiles count from 0.

    expert_ids: [num_tokens, top_k] integers, contiguous, not empty; a pair with another is in no tile, and its place in
    `order` is not written. Neither launch nor shape depends on them.
    """
    num_pairs, device = expert_ids.numel(), expert_ids.device
    num_tiles = min(num_pairs, triton.cdiv(num_pairs, rows) + num_experts)
    starts = torch.empty(num_experts + 1, dtype=torch.int32, device=device)
    order = torch.empty(num_pairs, dtype=torch.int32, device=device)
    tiles = torch.empty((num_tiles, 3), dtype=torch.int32, device=device)
    block = _FEW_PAIRS if num_pairs <= _FEW_PAIRS else _MANY_PAIRS
    _sort_pairs_kernel[(num_experts + 1,)](
        expert_ids, starts, order, num_pairs, first_expert, BLOCK=block, num_warps=4
    )
    _expert_tiles_kernel[(triton.cdiv(num_tiles, _BLOCK_TILES),)](
        starts,
        tiles,
        num_pairs,
        num_tiles,
        NUM_EXPERTS=num_experts,
        ROWS=rows,
        BLOCK_TILES=_BLOCK_TILES,
        BLOCK_EXPERTS=triton.next_power_of_2(num_experts),
        num_warps=4,
    )
    return ExpertTiles(order, tiles, rows)
