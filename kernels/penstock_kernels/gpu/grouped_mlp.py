"""The experts' products: tiles of one expert each, whose rows are gathered where they lie and written by pair.

Decoding is bound by reading the experts' weights, once each; prefill by the matrix units. A row's sum runs over the
length in one order, so it can depend on the other rows only by the shape of the tile, and that can be fixed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.gpu.routing import ExpertTiles, expert_tiles
from penstock_kernels.gpu.tiles import ProductTile, expert_tile

# Tiles that run side by side over all columns, so that they share weights in the cache. Unmeasured.
_GROUP: tl.constexpr = tl.constexpr(8)
# Columns of a program of the weighted sum: 8 per thread at 4 warps. Unmeasured.
_BLOCK = 1024


class ExpertLayer(NamedTuple):
    """weight: [num_experts, num_columns, length], bias: [num_experts, num_columns] or None; contiguous."""

    weight: torch.Tensor
    bias: torch.Tensor | None


@triton.jit
def tile_and_columns(num_tiles, NUM_COLUMNS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """The tile of this program, and its first column: tiles of a group run side by side over all columns."""
    program = tl.program_id(0)
    per_group = _GROUP * tl.cdiv(NUM_COLUMNS, BLOCK_COLUMNS)
    first_tile = program // per_group * _GROUP
    height = tl.minimum(num_tiles - first_tile, _GROUP)
    tile = first_tile + program % per_group % height
    return tile, program % per_group // height * BLOCK_COLUMNS


@triton.jit(do_not_specialize=["num_tiles"])
def _expert_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    order_ptr,
    tile_ptr,
    out_ptr,
    num_tiles,
    stride_x,
    TOP_K: tl.constexpr,
    NUM_COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_LENGTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Row `pair` of the result is `x[pair // TOP_K] @ weight[expert].T + bias[expert]`."""
    tile, first_column = tile_and_columns(num_tiles, NUM_COLUMNS, BLOCK_COLUMNS)
    expert = tl.load(tile_ptr + 3 * tile).to(tl.int64)
    if expert < 0:
        return
    first, end = tl.load(tile_ptr + 3 * tile + 1), tl.load(tile_ptr + 3 * tile + 2)
    places = first + tl.arange(0, BLOCK_ROWS)
    is_row = places < end
    pairs = tl.load(order_ptr + places, mask=is_row, other=0).to(tl.int64)
    columns = first_column + tl.arange(0, BLOCK_COLUMNS)
    is_column = columns < NUM_COLUMNS
    lengths = tl.arange(0, BLOCK_LENGTH)
    x_ptrs = x_ptr + (pairs // TOP_K * stride_x)[:, None] + lengths[None, :]
    weight_rows = (expert * NUM_COLUMNS + columns) * LENGTH
    weight_ptrs = weight_ptr + weight_rows[:, None] + lengths[None, :]
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    for start in range(0, LENGTH, BLOCK_LENGTH):
        x_mask, weight_mask = is_row[:, None], is_column[:, None]
        if LENGTH % BLOCK_LENGTH != 0:
            x_mask = x_mask & (start + lengths < LENGTH)[None, :]
            weight_mask = weight_mask & (start + lengths < LENGTH)[None, :]
        x = tl.load(x_ptrs + start, mask=x_mask, other=0.0)
        weight = tl.load(weight_ptrs + start, mask=weight_mask, other=0.0)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    if HAS_BIAS:
        bias_ptrs = bias_ptr + expert * NUM_COLUMNS + columns
        total += tl.load(bias_ptrs, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + (pairs * NUM_COLUMNS)[:, None] + columns[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["first_expert", "end_expert"])
def _weighted_sum_kernel(
    x_ptr,
    weight_ptr,
    id_ptr,
    out_ptr,
    first_expert,
    end_expert,
    TOP_K: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_PART: tl.constexpr,
):
    """A token's experts, always in the order of its choices. Rows of experts that are elsewhere were not written."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < DIM
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(TOP_K):
        pair = token * TOP_K + choice
        is_here = mask
        if IS_PART:
            expert = tl.load(id_ptr + pair)
            is_here = mask & (expert >= first_expert) & (expert < end_expert)
        x = tl.load(x_ptr + pair * DIM + columns, mask=is_here, other=0.0).to(tl.float32)
        total += x * tl.load(weight_ptr + pair).to(tl.float32)
    tl.store(out_ptr + token * DIM + columns, total.to(out_ptr.dtype.element_ty), mask=mask)


def grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    invariant: bool,
    part: ExpertPart | None = None,
) -> torch.Tensor:
    top_k, num_experts = expert_ids.shape[1], gate_up.shape[0]
    if expert_ids.numel() == 0 or num_experts == 0:
        return torch.zeros_like(x)
    first, total = part or ExpertPart(0, num_experts)
    tile = expert_tile(None if invariant else expert_ids.numel() // total, x.element_size())
    tiles = expert_tiles(expert_ids, num_experts, tile.rows, first)
    hidden = activate(expert_linear(x, ExpertLayer(gate_up, gate_up_bias), tiles, tile, top_k))
    outputs = expert_linear(hidden, ExpertLayer(down, down_bias), tiles, tile, 1)
    return weighted_sum(outputs, expert_weights, expert_ids, range(first, first + num_experts), total)


def expert_linear(
    x: torch.Tensor, layer: ExpertLayer, tiles: ExpertTiles, tile: ProductTile, top_k: int
) -> torch.Tensor:
    """[num_pairs, num_columns]; pair p takes row p // top_k of x."""
    _, num_columns, length = layer.weight.shape
    num_tiles = tiles.tiles.shape[0]
    out = torch.empty((tiles.order.shape[0], num_columns), dtype=x.dtype, device=x.device)
    _expert_linear_kernel[(num_tiles * triton.cdiv(num_columns, tile.columns),)](
        x,
        layer.weight,
        layer.weight if layer.bias is None else layer.bias,
        tiles.order,
        tiles.tiles,
        out,
        num_tiles,
        x.stride(0),
        TOP_K=top_k,
        NUM_COLUMNS=num_columns,
        LENGTH=length,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_LENGTH=tile.length,
        HAS_BIAS=layer.bias is not None,
        # Masks take registers: sm_89 spills with 4 warps.
        num_warps=8 if tile.rows == 64 and length % tile.length else tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def weighted_sum(
    x: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor, here: range, num_experts: int
) -> torch.Tensor:
    """[num_tokens, dim] of the rows of all pairs; `here` are those of all experts whose rows were written."""
    (num_tokens, top_k), dim = weights.shape, x.shape[1]
    out = torch.empty((num_tokens, dim), dtype=x.dtype, device=x.device)
    block = min(_BLOCK, triton.next_power_of_2(dim))
    _weighted_sum_kernel[(num_tokens, triton.cdiv(dim, block))](
        x,
        weights,
        expert_ids,
        out,
        here.start,
        here.stop,
        TOP_K=top_k,
        DIM=dim,
        BLOCK=block,
        IS_PART=len(here) < num_experts,
        num_warps=4,
    )
    return out
