"""Products with weights of few bits: a tile of codes becomes floats of the type of x, and the matrix units multiply it.

Up to 16 rows are bound by reading the codes: the length is divided among programs, and a second kernel adds their sums
in one order, so nothing is atomic and a captured graph holds. More rows are bound by the matrix units.

Two codes of a byte go into two tiles; the numbers of x at even and odd places are multiplied by one each.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from penstock_kernels import reference
from penstock_kernels.base.quantized import Float8Grid, IntGroups, Quantized, TableBlocks
from penstock_kernels.gpu.tiles import SplitTile, processor, quantized_tile

# Numbers of a program that adds sums: 8 per thread at 4 warps. Unmeasured.
_BLOCK = 1024
# The fewest inputs of a tile: a matrix unit takes 16, and a byte may have two.
_SHORTEST = 32


@triton.jit
def _float8(code):
    """A float of 8 bits from its bits: as a float of 16 bits it is 2^8 times smaller."""
    bits = code.to(tl.int16)
    size = bits & 0x7F
    number = ((size << 7) | ((bits & 0x80) << 8)).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(size == 0x7F, float("nan"), number)


@triton.jit
def _scales(ptrs, mask, tensor_scale_ptr, SCALE: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr):
    stored = tl.load(ptrs, mask=mask, other=0)
    if SCALE == "float8":
        scale = _float8(stored)
    elif SCALE == "power":
        power = (stored.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        scale = tl.where(stored == 255, float("nan"), power)
    else:
        scale = stored.to(tl.float32)
    if HAS_TENSOR_SCALE:
        scale *= tl.load(tensor_scale_ptr)
    return scale


@triton.jit
def _repeated(x, COLUMNS: tl.constexpr, COUNT: tl.constexpr, LENGTH: tl.constexpr):
    """[COLUMNS, COUNT], each number for the LENGTH // COUNT neighbours of a group."""
    repeated = x
    if COUNT != 1:
        wide = tl.broadcast_to(x[:, :, None], [COLUMNS, COUNT, LENGTH // COUNT])
        repeated = tl.reshape(wide, [COLUMNS, LENGTH])
    return repeated


@triton.jit
def _numbers(code, zero, table, KIND: tl.constexpr):
    if KIND == "table":
        number = tl.gather(table, code.to(tl.int32), axis=1)
    elif KIND == "float8":
        number = _float8(code)
    else:
        number = code.to(tl.float32) - zero
    return number


@triton.jit
def _weights(code, zero, table, scale, offset, KIND: tl.constexpr, HAS_OFFSETS: tl.constexpr):
    weight = _numbers(code, zero, table, KIND) * scale
    if HAS_OFFSETS:
        weight += offset
    return weight


@triton.jit
def _tiles(x_rows, code_rows, is_row, is_column, begin, FIRST: tl.constexpr, LENGTH: tl.constexpr,
           PER_BYTE: tl.constexpr, BLOCK_LENGTH: tl.constexpr):  # fmt: skip
    """Inputs and codes of a tile. `begin` is counted from the begin of the first group."""
    at = begin - FIRST + tl.arange(0, BLOCK_LENGTH)
    byte = (begin - FIRST) // PER_BYTE + tl.arange(0, BLOCK_LENGTH // PER_BYTE)
    x_mask, code_mask = is_row[:, None], is_column[:, None]
    if FIRST != 0 or LENGTH % BLOCK_LENGTH != 0:
        x_mask = x_mask & ((at >= 0) & (at < LENGTH))[None, :]
        code_mask = code_mask & ((byte >= 0) & (byte < (LENGTH + PER_BYTE - 1) // PER_BYTE))[None, :]
    x = tl.load(x_rows + at[None, :], mask=x_mask, other=0.0)
    return x, tl.load(code_rows + byte[None, :], mask=code_mask, other=0)


@triton.jit
def _of_groups(scale_rows, zero_rows, offset_rows, tensor_scale_ptr, is_column, begin, GROUP: tl.constexpr,
               NUM_GROUPS: tl.constexpr, SCALE: tl.constexpr, ZERO: tl.constexpr, HAS_TENSOR_SCALE: tl.constexpr,
               HAS_ZEROS: tl.constexpr, HAS_OFFSETS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
               BLOCK_LENGTH: tl.constexpr, CODES: tl.constexpr):  # fmt: skip
    """Scale, zero and offset of every code of a tile; one number for all where they have none of their own."""
    SCALES: tl.constexpr = 1 if BLOCK_LENGTH < GROUP else BLOCK_LENGTH // GROUP
    group = begin // GROUP + tl.arange(0, SCALES)[None, :]
    mask = is_column[:, None] & (group < NUM_GROUPS)
    scale = _scales(scale_rows + group, mask, tensor_scale_ptr, SCALE, HAS_TENSOR_SCALE)
    scale = _repeated(scale, BLOCK_COLUMNS, SCALES, CODES)
    zero = ZERO
    if HAS_ZEROS:
        zero = tl.load(zero_rows + group, mask=mask, other=0).to(tl.float32)
        zero = _repeated(zero, BLOCK_COLUMNS, SCALES, CODES)
    offset = 0.0
    if HAS_OFFSETS:
        offset = tl.load(offset_rows + group, mask=mask, other=0).to(tl.float32)
        offset = _repeated(offset, BLOCK_COLUMNS, SCALES, CODES)
    return scale, zero, offset


@triton.jit
def _multiplied(total, x, codes, zero, table, scale, offset, KIND: tl.constexpr, HAS_OFFSETS: tl.constexpr,
                IS_PACKED: tl.constexpr, IS_HIGH_FIRST: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                CODES: tl.constexpr):  # fmt: skip
    """The sum so far and a tile's product."""
    if IS_PACKED:
        low = _weights(codes & 15, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        high = _weights(codes >> 4, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        even, odd = tl.split(tl.reshape(x, [BLOCK_ROWS, CODES, 2]))
        total = tl.dot(odd if IS_HIGH_FIRST else even, tl.trans(low), total, input_precision="ieee")
        total = tl.dot(even if IS_HIGH_FIRST else odd, tl.trans(high), total, input_precision="ieee")
    else:
        weight = _weights(codes, zero, table, scale, offset, KIND, HAS_OFFSETS).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_linear_kernel(
    x_ptr,
    codes_ptr,
    scale_ptr,
    zero_ptr,
    offset_ptr,
    table_ptr,
    tensor_scale_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    stride_x,
    stride_out,
    LENGTH: tl.constexpr,
    NUM_COLUMNS: tl.constexpr,
    STRIDE_CODES: tl.constexpr,
    STRIDE_SCALES: tl.constexpr,
    STRIDE_ZEROS: tl.constexpr,
    STRIDE_OFFSETS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    KIND: tl.constexpr,
    IS_PACKED: tl.constexpr,
    IS_HIGH_FIRST: tl.constexpr,
    ZERO: tl.constexpr,
    SCALE: tl.constexpr,
    HAS_TENSOR_SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    FIRST: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    COLUMNS_PER_SCALE: tl.constexpr,
    FIRST_IN_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    BLOCK_LENGTH: tl.constexpr,
):
    """Rows times columns over a share of the length, which is counted from the begin of its first group."""
    rows = tl.program_id(1).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.program_id(0).to(tl.int64) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    split = tl.program_id(2)
    is_row, is_column = rows < num_rows, columns < NUM_COLUMNS
    safe = tl.where(is_column, columns, 0)
    PER_BYTE: tl.constexpr = 2 if IS_PACKED else 1
    CODES: tl.constexpr = BLOCK_LENGTH // PER_BYTE
    scale_rows = scale_ptr + ((FIRST_IN_SCALE + safe) // COLUMNS_PER_SCALE * STRIDE_SCALES)[:, None]
    zero_rows = zero_ptr + (safe * STRIDE_ZEROS)[:, None]
    offset_rows = offset_ptr + (safe * STRIDE_OFFSETS)[:, None]
    x_rows = x_ptr + (rows * stride_x)[:, None]
    code_rows = codes_ptr + (safe * STRIDE_CODES)[:, None]
    table = 0
    if KIND == "table":
        table = tl.broadcast_to(tl.load(table_ptr + tl.arange(0, 16))[None, :], [BLOCK_COLUMNS, 16])
    total = tl.zeros([BLOCK_ROWS, BLOCK_COLUMNS], tl.float32)
    TILES: tl.constexpr = (FIRST + LENGTH + BLOCK_LENGTH - 1) // BLOCK_LENGTH
    SHARE: tl.constexpr = (TILES + SPLITS - 1) // SPLITS
    for tile in range(split * SHARE, tl.minimum(split * SHARE + SHARE, TILES)):
        begin = tile * BLOCK_LENGTH
        x, codes = _tiles(x_rows, code_rows, is_row, is_column, begin, FIRST, LENGTH, PER_BYTE, BLOCK_LENGTH)
        scale, zero, offset = _of_groups(
            scale_rows, zero_rows, offset_rows, tensor_scale_ptr, is_column, begin, GROUP, NUM_GROUPS, SCALE, ZERO,
            HAS_TENSOR_SCALE, HAS_ZEROS, HAS_OFFSETS, BLOCK_COLUMNS, BLOCK_LENGTH, CODES)  # fmt: skip
        total = _multiplied(total, x, codes, zero, table, scale, offset, KIND, HAS_OFFSETS, IS_PACKED, IS_HIGH_FIRST,
                            BLOCK_ROWS, CODES)  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + ((split.to(tl.int64) * num_rows + rows) * stride_out)[:, None] + columns[None, :]
    tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["num_numbers"])
def _sum_of_shares_kernel(
    x_ptr,
    bias_ptr,
    out_ptr,
    num_numbers,
    NUM_COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sums of the shares of the length, in their order."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = places < num_numbers
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(x_ptr + split * num_numbers.to(tl.int64) + places, mask=mask, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_ptr + places % NUM_COLUMNS, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, total.to(out_ptr.dtype.element_ty), mask=mask)


class _Groups(NamedTuple):
    """Inputs of one scale, and those of the first scale that belong to other parts."""

    size: int
    first: int


# Of a row with one scale: it begins with its group, which is as long as any tile.
_ONE_GROUP = _Groups(1 << 30, 0)


def quantized_linear(
    x: torch.Tensor, parts: tuple[Quantized, ...], bias: torch.Tensor | None, invariant: bool
) -> torch.Tensor:
    num_rows, length = x.shape
    num_columns = sum(part.out_features for part in parts)
    if num_rows * num_columns * length == 0 or not all(_is_in_tiles(part) for part in parts):
        return reference.quantized_linear(x, parts, bias, invariant)
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    shape = num_columns, length
    tile = quantized_tile(None if invariant else num_rows, shape, x.element_size(), processor(x.device))
    if tile.splits == 1:
        _multiply(x, parts, bias, out, tile)
        return out
    sums = torch.empty((tile.splits, num_rows, num_columns), dtype=torch.float32, device=x.device)
    _multiply(x, parts, None, sums, tile)
    _sum_of_shares_kernel[(triton.cdiv(out.numel(), _BLOCK),)](
        sums,
        sums if bias is None else bias,
        out,
        out.numel(),
        NUM_COLUMNS=num_columns,
        SPLITS=tile.splits,
        HAS_BIAS=bias is not None,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return out


def _groups(matrix: Quantized) -> _Groups:
    if isinstance(matrix, Float8Grid):
        found = _Groups(matrix.block_columns, matrix.first_column)
    else:
        size = matrix.group_size if isinstance(matrix, IntGroups) else matrix.block_size
        found = _Groups(size, matrix.first)
    return _ONE_GROUP if found.first + matrix.shape[1] <= found.size else found


def _is_packed(matrix: Quantized) -> bool:
    return isinstance(matrix, TableBlocks) or (isinstance(matrix, IntGroups) and matrix.bits == 4)


def _is_in_tiles(matrix: Quantized) -> bool:
    """Whether its codes are bytes or halves of them, and groups and bytes are whole tiles or whole parts of tiles."""
    if isinstance(matrix, IntGroups) and (matrix.bits not in (4, 8) or matrix.group_of_column is not None):
        return False
    groups = _groups(matrix)
    begins_with_byte = groups.first % 2 == 0 or not _is_packed(matrix)
    return begins_with_byte and _fits(groups.size, _SHORTEST)


def _fits(group: int, block: int) -> bool:
    return group % block == 0 or (group < block and block % group == 0 and group > 1)


def _for_groups(tile: SplitTile, groups: _Groups, length: int) -> SplitTile:
    """With as many inputs as have whole groups, or are part of one. Where the first or last tile is not whole, masks
    take registers, too: of more threads, for fewer inputs."""
    block = tile.length
    if groups.first or length % block:
        block = max(block // 2, _SHORTEST)
        tile = replace(tile, num_warps=8)
    while not _fits(groups.size, block):
        block //= 2
    return replace(tile, length=block)


def _multiply(
    x: torch.Tensor,
    parts: tuple[Quantized, ...],
    bias: torch.Tensor | None,
    out: torch.Tensor,
    tile: SplitTile,
) -> None:
    first = 0
    for part in parts:
        count = part.out_features
        its_bias = None if bias is None else bias[first : first + count]
        if count:
            _launch(x, part, its_bias, out[..., first : first + count], tile)
        first += count


def _launch(
    x: torch.Tensor, matrix: Quantized, bias: torch.Tensor | None, out: torch.Tensor, tile: SplitTile
) -> None:
    groups = _groups(matrix)
    tile = _for_groups(tile, groups, x.shape[1])
    zeros = matrix.zeros if isinstance(matrix, IntGroups) else None
    offsets = matrix.offsets if isinstance(matrix, IntGroups) else None
    table = matrix.table if isinstance(matrix, TableBlocks) else None
    tensor_scale = matrix.tensor_scale if isinstance(matrix, TableBlocks) else None
    scales, scale_kind = _bits_of(matrix.scales)
    codes = matrix.codes.view(torch.uint8) if isinstance(matrix, Float8Grid) else matrix.codes
    rows_of_scale = (matrix.block_rows, matrix.first_row) if isinstance(matrix, Float8Grid) else (1, 0)
    num_tiles = triton.cdiv(matrix.out_features, tile.columns), triton.cdiv(x.shape[0], tile.rows)
    _quantized_linear_kernel[(*num_tiles, tile.splits)](
        x,
        codes,
        scales,
        codes if zeros is None else zeros,
        scales if offsets is None else offsets,
        scales if table is None else table,
        scales if tensor_scale is None else tensor_scale,
        x if bias is None else bias,
        out,
        x.shape[0],
        x.stride(0),
        out.stride(-2),
        LENGTH=x.shape[1],
        NUM_COLUMNS=matrix.out_features,
        STRIDE_CODES=codes.stride(0),
        STRIDE_SCALES=scales.stride(0),
        STRIDE_ZEROS=0 if zeros is None else zeros.stride(0),
        STRIDE_OFFSETS=0 if offsets is None else offsets.stride(0),
        HAS_ZEROS=zeros is not None,
        HAS_OFFSETS=offsets is not None,
        KIND=_kind(matrix),
        IS_PACKED=_is_packed(matrix),
        IS_HIGH_FIRST=isinstance(matrix, TableBlocks) and not matrix.low_first,
        ZERO=matrix.usual_zero if isinstance(matrix, IntGroups) else 0,
        SCALE=scale_kind,
        HAS_TENSOR_SCALE=tensor_scale is not None,
        GROUP=groups.size,
        FIRST=groups.first,
        NUM_GROUPS=scales.shape[1],
        COLUMNS_PER_SCALE=rows_of_scale[0],
        FIRST_IN_SCALE=rows_of_scale[1],
        HAS_BIAS=bias is not None,
        SPLITS=tile.splits,
        BLOCK_ROWS=tile.rows,
        BLOCK_COLUMNS=tile.columns,
        BLOCK_LENGTH=tile.length,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )


def _kind(matrix: Quantized) -> str:
    if isinstance(matrix, TableBlocks):
        return "table"
    return "float8" if isinstance(matrix, Float8Grid) else "integer"


def _bits_of(scales: torch.Tensor) -> tuple[torch.Tensor, str]:
    """Scales as kernels take them on any device, and how they are read."""
    kinds = {torch.float8_e4m3fn: "float8", torch.float8_e8m0fnu: "power"}
    kind = kinds.get(scales.dtype)
    return (scales, "float") if kind is None else (scales.view(torch.uint8), kind)
