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
# Keeps scores that are all 0 from becoming NaN.
_TINY: tl.constexpr = tl.constexpr(1e-20)
# Tiles of a program of the map. Unmeasured.
_BLOCK_TILES = 32


class ExpertTiles(NamedTuple):
    """order: [num_pairs] int32, the pairs by expert; pair p is choice p % top_k of token p // top_k.
    tiles: [num_tiles, 3] int32: expert (-1: idle), first and end place in `order`, at most `rows` apart."""

    order: torch.Tensor
    tiles: torch.Tensor
    rows: int


@triton.jit
def _first_largest(merit, places, LAST: tl.constexpr):
    """The largest of every row, and its place: of equal ones the first, in a row of NaN the last."""
    largest = tl.max(merit, axis=1)
    return largest, tl.min(tl.where(merit == largest[:, None], places[None, :], LAST), axis=1)


@triton.jit
def _among_groups(merit, experts, NUM_EXPERTS: tl.constexpr, NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
                  SUMS_PAIRS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_GROUPS: tl.constexpr):  # fmt: skip
    """`merit`, with -inf outside the groups that a token chose."""
    PER_GROUP: tl.constexpr = NUM_EXPERTS // NUM_GROUPS
    groups = tl.arange(0, BLOCK_GROUPS)
    worth = tl.full([BLOCK_TOKENS, BLOCK_GROUPS], float("-inf"), tl.float32)
    for group in tl.static_range(NUM_GROUPS):
        inside = tl.where((experts // PER_GROUP == group)[None, :], merit, float("-inf"))
        best, place = _first_largest(inside, experts, NUM_EXPERTS - 1)
        if SUMS_PAIRS:
            best += tl.max(tl.where(experts[None, :] == place[:, None], float("-inf"), inside), axis=1)
        worth = tl.where((groups == group)[None, :], best[:, None], worth)
    is_open = tl.full(merit.shape, False, tl.int1)
    for _ in tl.static_range(TOP_GROUPS):
        _, found = _first_largest(worth, groups, NUM_GROUPS - 1)
        worth = tl.where(groups[None, :] == found[:, None], float("-inf"), worth)
        is_open = is_open | ((experts // PER_GROUP)[None, :] == found[:, None])
    return tl.where(is_open, merit, float("-inf"))


@triton.jit(do_not_specialize=["num_tokens"])
def _route_kernel(
    logits_ptr, correction_ptr, weight_ptr, id_ptr, num_tokens, stride_token, scale, NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr, NORMALIZED: tl.constexpr, SIGMOID: tl.constexpr, HAS_CORRECTION: tl.constexpr,
    NUM_GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr, SUMS_PAIRS: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr, BLOCK_GROUPS: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Scores, then the best TOP_K one after the other: of equal ones the smallest id."""
    tokens = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    experts, choices = tl.arange(0, BLOCK_EXPERTS), tl.arange(0, BLOCK_K)
    is_token, is_expert = tokens < num_tokens, experts < NUM_EXPERTS
    ptrs = logits_ptr + tokens[:, None] * stride_token + experts[None, :]
    logits = tl.load(ptrs, mask=is_token[:, None] & is_expert[None, :], other=float("-inf")).to(tl.float32)
    logits = tl.where(is_token[:, None], logits, 0.0)
    if SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        mass = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        scores = mass / tl.sum(mass, axis=1)[:, None]
    merit = scores
    if HAS_CORRECTION:
        merit += tl.load(correction_ptr + experts, mask=is_expert, other=0.0)[None, :]
    merit = tl.where(is_expert[None, :], merit, float("-inf"))
    if NUM_GROUPS > 1:
        merit = _among_groups(merit, experts, NUM_EXPERTS, NUM_GROUPS, TOP_GROUPS, SUMS_PAIRS, BLOCK_TOKENS,
                              BLOCK_GROUPS)  # fmt: skip
    weights = tl.zeros([BLOCK_TOKENS, BLOCK_K], tl.float32)
    ids = tl.zeros([BLOCK_TOKENS, BLOCK_K], tl.int32)
    for choice in tl.static_range(TOP_K):
        # -inf is what was taken already. A row of NaN still gets ids of experts, and NaN as its weights.
        _, found = _first_largest(merit, experts, NUM_EXPERTS - 1)
        is_found = experts[None, :] == found[:, None]
        score = tl.sum(tl.where(is_found, scores, 0.0), axis=1)
        ids = tl.where((choices == choice)[None, :], found[:, None], ids)
        weights = tl.where((choices == choice)[None, :], score[:, None], weights)
        merit = tl.where(is_found, float("-inf"), merit)
    if NORMALIZED:
        weights = weights / (tl.sum(weights, axis=1)[:, None] + _TINY)
    places = tokens[:, None] * TOP_K + choices[None, :]
    chosen = is_token[:, None] & (choices < TOP_K)[None, :]
    tl.store(weight_ptr + places, weights * scale, mask=chosen)
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
    num_tokens, num_experts = logits.shape
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    if num_tokens:
        _route_kernel[(triton.cdiv(num_tokens, _BLOCK_TOKENS),)](
            logits,
            logits if correction is None else correction,
            weights,
            ids,
            num_tokens,
            logits.stride(0),
            float(routing.scale),
            NUM_EXPERTS=num_experts,
            TOP_K=top_k,
            NORMALIZED=normalized,
            SIGMOID=routing.sigmoid,
            HAS_CORRECTION=correction is not None,
            NUM_GROUPS=routing.num_groups,
            TOP_GROUPS=routing.top_groups,
            SUMS_PAIRS=routing.sums_pairs,
            BLOCK_TOKENS=_BLOCK_TOKENS,
            BLOCK_EXPERTS=triton.next_power_of_2(num_experts),
            BLOCK_GROUPS=triton.next_power_of_2(routing.num_groups),
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=4,
        )
    return Routes(weights, ids)


def expert_tiles(expert_ids: torch.Tensor, num_experts: int, rows: int, first_expert: int = 0) -> ExpertTiles:
    """The tiles of `num_experts` experts from `first_expert` on; tiles number the experts from 0.

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
