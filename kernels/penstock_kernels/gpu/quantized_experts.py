"""The experts' products with weights of few bits: tiles of one expert each, as in `grouped_mlp`.

Every expert's matrix stays where it was loaded: a table on the device says where. Which experts a step needs is data,
so nothing is asked on the host, and a captured graph serves any choice. Parts of a matrix that lie apart (gate and up
projection) are one launch each.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels.base.expert_matrices import ExpertMatrices
from penstock_kernels.base.expert_part import ExpertPart
from penstock_kernels.base.quantized import Matrix, Quantized
from penstock_kernels.gpu.grouped_mlp import tile_and_columns, weighted_sum
from penstock_kernels.gpu.quantized_tiles import (
    Tensors,
    add_products,
    constants,
    is_in_tiles,
    table_of,
    tensors_of,
    tile_for,
)
from penstock_kernels.gpu.rounded_rows import Rows, rows_for
from penstock_kernels.gpu.routing import ExpertTiles, expert_tiles
from penstock_kernels.gpu.tiles import SplitTile, processor, quantized_tile

# The alignment that a load of 16 bytes needs.
_WIDE = 16


class _Stack(NamedTuple):
    """One part of every expert. All lie as that of the first one does.

    `words`: [num_experts, 6] int64, the addresses of `Tensors`; those of codes are multiples of `alignment` bytes.
    """

    first: Quantized
    tensors: Tensors
    constants: dict[str, Any]
    words: torch.Tensor
    alignment: int


@triton.jit
def _address(words_ptr, expert, which: tl.constexpr, like_ptr):
    """The pointer to a tensor of an expert's matrix; `like_ptr` has its type."""
    return tl.load(words_ptr + expert * 6 + which).to(tl.pointer_type(like_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["num_tiles"])
def _quantized_experts_kernel(
    x_ptr, x_scale_ptr, words_ptr, codes_ptr, scale_ptr, zero_ptr, offset_ptr, table_ptr, tensor_scale_ptr, bias_ptr,
    order_ptr, tile_ptr, out_ptr, num_tiles, stride_x, stride_x_scale, stride_bias, stride_out, TOP_K: tl.constexpr,
    IS_ROUNDED: tl.constexpr, LENGTH: tl.constexpr, NUM_COLUMNS: tl.constexpr, STRIDE_CODES: tl.constexpr,
    STRIDE_SCALES: tl.constexpr, STRIDE_ZEROS: tl.constexpr, STRIDE_OFFSETS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr, KIND: tl.constexpr, IS_PACKED: tl.constexpr, IS_HIGH_FIRST: tl.constexpr,
    ZERO: tl.constexpr, SCALE: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr, GROUP: tl.constexpr, FIRST: tl.constexpr,
    NUM_GROUPS: tl.constexpr, COLUMNS_PER_SCALE: tl.constexpr, FIRST_IN_SCALE: tl.constexpr, ALIGNMENT: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr, BLOCK_LENGTH: tl.constexpr,
):  # fmt: skip
    """Row `pair` of the result is `x[pair // TOP_K] @ weight[expert].T + bias[expert]`. Of the tensors of a matrix,
    which are the first expert's, only the types are read."""
    tile, first_column = tile_and_columns(num_tiles, NUM_COLUMNS, BLOCK_COLUMNS)
    expert = tl.load(tile_ptr + 3 * tile).to(tl.int64)
    if expert < 0:
        return
    first, end = tl.load(tile_ptr + 3 * tile + 1), tl.load(tile_ptr + 3 * tile + 2)
    places = first + tl.arange(0, BLOCK_ROWS)
    is_row = places < end
    pairs = tl.load(order_ptr + places, mask=is_row, other=0).to(tl.int64)
    columns = first_column.to(tl.int64) + tl.arange(0, BLOCK_COLUMNS)
    is_column = columns < NUM_COLUMNS
    safe = tl.where(is_column, columns, 0)
    codes = tl.multiple_of(_address(words_ptr, expert, 0, codes_ptr), ALIGNMENT)
    scale_rows = (
        _address(words_ptr, expert, 1, scale_ptr)
        + ((FIRST_IN_SCALE + safe) // COLUMNS_PER_SCALE * STRIDE_SCALES)[:, None]
    )
    zero_rows = _address(words_ptr, expert, 2, zero_ptr) + (safe * STRIDE_ZEROS)[:, None]
    offset_rows = _address(words_ptr, expert, 3, offset_ptr) + (safe * STRIDE_OFFSETS)[:, None]
    table = table_of(_address(words_ptr, expert, 4, table_ptr), KIND, BLOCK_COLUMNS)
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    rows = pairs // TOP_K
    total = add_products(
        total, x_ptr + (rows * stride_x)[:, None], x_scale_ptr + rows * stride_x_scale,
        codes + (safe * STRIDE_CODES)[:, None], scale_rows, zero_rows, offset_rows, table,
        _address(words_ptr, expert, 5, tensor_scale_ptr), is_row, is_column, 0,
        (FIRST + LENGTH + BLOCK_LENGTH - 1) // BLOCK_LENGTH, IS_ROUNDED, LENGTH, HAS_ZEROS, HAS_OFFSETS, KIND,
        IS_PACKED, IS_HIGH_FIRST, ZERO, SCALE, HAS_TENSOR_SCALE, GROUP, FIRST, NUM_GROUPS, BLOCK_ROWS, BLOCK_COLUMNS,
        BLOCK_LENGTH)  # fmt: skip
    if HAS_BIAS:
        bias_ptrs = bias_ptr + expert * stride_bias + columns
        total += tl.load(bias_ptrs, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + (pairs * stride_out)[:, None] + columns[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def supports(gate_up: tuple[tuple[Matrix, ...], ...], down: tuple[Matrix, ...]) -> bool:
    """Whether all experts have matrices of few bits that lie alike, and that the kernel can read."""
    return _stacks(gate_up) is not None and _stacks(down) is not None


def quantized_grouped_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: tuple[tuple[Matrix, ...], ...],
    down: tuple[Matrix, ...],
    activate: Callable[[torch.Tensor], torch.Tensor],
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    invariant: bool = False,
    part: ExpertPart | None = None,
) -> torch.Tensor:
    top_k, num_experts = expert_ids.shape[1], len(down)
    if expert_ids.numel() == 0 or num_experts == 0:
        return torch.zeros_like(x)
    first, total = part or ExpertPart(0, num_experts)
    ups, downs = _stacks(gate_up), _stacks(down)
    assert ups is not None, "the table has a condition"
    assert downs is not None, "the table has a condition"
    rows_each = None if invariant else expert_ids.numel() // total
    tiles = expert_tiles(expert_ids, num_experts, _tile(rows_each, ups[0].first, x).rows, first)
    hidden = activate(_expert_linear(x, ups, gate_up_bias, tiles, rows_each, top_k))
    outputs = _expert_linear(hidden, downs, down_bias, tiles, rows_each, 1)
    return weighted_sum(outputs, expert_weights, expert_ids, range(first, first + num_experts), total)


def _expert_linear(
    x: torch.Tensor,
    stacks: tuple[_Stack, ...],
    bias: torch.Tensor | None,
    tiles: ExpertTiles,
    rows_each: int | None,
    top_k: int,
) -> torch.Tensor:
    """[num_pairs, columns of all parts]; pair p takes row p // top_k of x."""
    num_columns = sum(stack.first.out_features for stack in stacks)
    out = torch.empty((tiles.order.shape[0], num_columns), dtype=x.dtype, device=x.device)
    begin = 0
    # Rows by what a part asks of them, which most parts agree on.
    rows: dict[object, Rows] = {}
    for stack in stacks:
        end = begin + stack.first.out_features
        its_bias = None if bias is None else bias[:, begin:end]
        tile = tile_for(_tile(rows_each, stack.first, x), stack.first, most_columns=64)
        if stack.first.kind not in rows:
            rows[stack.first.kind] = rows_for(x, stack.first)
        _launch(rows[stack.first.kind], stack, its_bias, tiles, tile, out[:, begin:end], top_k)
        begin = end
    return out


def _tile(rows_each: int | None, matrix: Quantized, x: torch.Tensor) -> SplitTile:
    shape = matrix.out_features, matrix.shape[1]
    size = 1 if matrix.input_bits else x.element_size()
    return replace(quantized_tile(rows_each, shape, size, processor(x.device)), splits=1)


def _launch(
    rows: Rows,
    stack: _Stack,
    bias: torch.Tensor | None,
    tiles: ExpertTiles,
    tile: SplitTile,
    out: torch.Tensor,
    top_k: int,
) -> None:
    num_tiles, (x, scales) = tiles.tiles.shape[0], rows
    _quantized_experts_kernel[(num_tiles * triton.cdiv(out.shape[1], tile.columns),)](
        x,
        scales,
        stack.words,
        *stack.tensors,
        out if bias is None else bias,
        tiles.order,
        tiles.tiles,
        out,
        num_tiles,
        x.stride(0),
        scales.stride(0),
        0 if bias is None else bias.stride(0),
        out.stride(0),
        TOP_K=top_k,
        **stack.constants,
        ALIGNMENT=stack.alignment,
        HAS_BIAS=bias is not None,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_LENGTH=tile.length,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _stacks(matrices: tuple[Any, ...]) -> tuple[_Stack, ...] | None:
    """The stack of each part; made once where the same experts come again. None: the kernel cannot read them."""
    if isinstance(matrices, ExpertMatrices):
        return matrices.shared("stacks", lambda: _make_stacks(matrices))
    return _make_stacks(matrices)


def _make_stacks(matrices: tuple[Any, ...]) -> tuple[_Stack, ...] | None:
    experts = [found if isinstance(found, tuple) else (found,) for found in matrices]
    if len({len(parts) for parts in experts}) > 1:
        return None
    made = [_stack(same) for same in zip(*experts, strict=True)]
    found = tuple(stack for stack in made if stack is not None)
    return found if len(found) == len(made) else None


def _stack(same: tuple[Matrix, ...]) -> _Stack | None:
    found = [matrix for matrix in same if not isinstance(matrix, torch.Tensor) and is_in_tiles(matrix)]
    tensors = [tensors_of(matrix) for matrix in found]
    layouts = [_layout(matrix, parts) for matrix, parts in zip(found, tensors, strict=True)]
    if len(found) < len(same) or any(layout != layouts[0] for layout in layouts):
        return None
    words = torch.tensor([[tensor.data_ptr() for tensor in parts] for parts in tensors])
    is_wide = bool((words[:, 0] % _WIDE == 0).all())
    alignment = _WIDE if is_wide else 1
    return _Stack(found[0], tensors[0], constants(found[0]), words.to(found[0].device), alignment)


def _layout(matrix: Quantized, tensors: Tensors) -> tuple[Any, ...]:
    """The properties that must be the same for all experts of a launch."""
    return type(matrix), tuple(tensor.dtype for tensor in tensors), constants(matrix)
