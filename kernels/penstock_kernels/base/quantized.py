"""Weights of a product in few bits. Every checkpoint format is one of three families, and kernels know only these.

A matrix is [out_features, in_features], as in `torch.nn.Linear`. Its codes lie row by row along the inputs, so that
rows of a file can stay where they are: a row is contiguous, but rows may lie apart (`stride(0)` is anything). Scales
lie the same way. A part of a matrix keeps its offset inside a group or block (`first`), so a rank's part may begin
anywhere, and nothing is ever quantized a second time.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeGuard

import torch

from penstock_kernels.base.bit_stream import columns_of

# Inputs that are rounded to whole numbers with one scale.
INPUT_BLOCK = 32
# Inputs that a GPU rounds with one scale, to whole numbers or to floats of 8 bits; fewer where a group has fewer.
GPU_INPUT_BLOCK = 128
# The largest of those numbers, by their bits. Those of 16 bits have two digits, see native/src/rounded.c.
LARGEST_INPUT = {8: 127, 16: 127 * 254 + 126}
# The largest float8_e4m3fn.
LARGEST_FLOAT8 = 448


@dataclass(frozen=True, slots=True, eq=False)
class _Tensors:
    """Properties that all families share: tensors on one device, codes first."""

    codes: torch.Tensor

    @property
    def device(self) -> torch.device:
        """The device of all its tensors."""
        return self.codes.device

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors by the name of their field."""
        found = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in found if isinstance(value, torch.Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, in memory or in the file that they lie in."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def out_features(self) -> int:
        """Rows."""
        return self.codes.shape[0]


class Groups(NamedTuple):
    """Inputs of one scale, and those of the first scale that belong to other parts of a matrix."""

    size: int
    first: int


@dataclass(frozen=True, slots=True, eq=False)
class IntGroups(_Tensors):
    """Integers with a scale, and perhaps a zero point or an offset, for every group of inputs of a row.

    `weight[n, k] = (code[n, k] - zero[n, g]) * scale[n, g] + offset[n, g]`, with g of column k: `group_of_column[k]` if
    there is one, else `(first + k) // group_size`. Without `zeros`, zero is 0 for signed codes and with offsets, and
    else 2 ** (bits - 1).

    codes: uint8 [out_features, at least ceil(in_features * bits / 8)]: each row one stream of bits (see `bit_stream`),
    padded at its end; or int8 [out_features, in_features], signed, where bits is 8.
    """

    # float16, bfloat16 or float32 [out_features, groups].
    scales: torch.Tensor
    # [out_features, groups], of the type of the codes; None: `usual_zero`.
    zeros: torch.Tensor | None
    in_features: int
    # 2, 3, 4, 5, 6, 7 or 8.
    bits: int
    # Inputs of a group; of a whole row, where it has one scale.
    group_size: int
    # Columns of the first group that belong to other parts of the matrix: 0 <= first < group_size.
    first: int = 0
    # int32 [in_features], in any order, or None where groups are neighbouring columns. Then `first` is 0.
    group_of_column: torch.Tensor | None = None
    # [out_features, groups], of the type of `scales`; None: 0.
    offsets: torch.Tensor | None = None
    # Rows that are multiplied by it are rounded to whole numbers of so many bits first, 8 or 16, see `input_blocks`:
    # only where it `takes_rounded`. 0: they are not.
    input_bits: int = 0
    # Inputs that are rounded with one scale.
    input_block: int = INPUT_BLOCK

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def is_signed(self) -> bool:
        """Whether codes are int8."""
        return self.codes.dtype == torch.int8

    @property
    def usual_zero(self) -> int:
        """The zero of codes without `zeros`."""
        return 0 if self.is_signed or self.offsets is not None else 1 << self.bits - 1

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that parts of a fused matrix must have in common to be one product."""
        layout = self.bits, self.is_signed, self.group_size, self.first, self.group_of_column is None
        parts = self.zeros is None, self.offsets is None
        return IntGroups, *layout, *parts, self.scales.dtype, self.input_bits, self.input_block

    @property
    def takes_rounded(self) -> bool:
        """Whether rounded rows can be multiplied by it: groups in order, without offsets."""
        return self.group_of_column is None and self.offsets is None

    @property
    def groups(self) -> "Groups":
        """The groups of its inputs."""
        return Groups(self.group_size, self.first)

    def rows(self, index: slice) -> "IntGroups":
        """Some outputs: views."""
        zeros = None if self.zeros is None else self.zeros[index]
        offsets = None if self.offsets is None else self.offsets[index]
        return replace(self, codes=self.codes[index], scales=self.scales[index], zeros=zeros, offsets=offsets)

    def columns(self, start: int, stop: int) -> "IntGroups":
        """The inputs `start .. stop`: views, but codes that begin inside a byte are copied."""
        codes = columns_of(self.codes, self.bits, start, stop)
        if self.group_of_column is not None:
            # A part may need any group.
            columns = self.group_of_column[start:stop]
            return replace(self, codes=codes, in_features=stop - start, group_of_column=columns)
        begin = self.first + start
        groups = slice(begin // self.group_size, -(-(self.first + stop) // self.group_size))
        return replace(
            self,
            codes=codes,
            scales=self.scales[:, groups],
            zeros=None if self.zeros is None else self.zeros[:, groups],
            offsets=None if self.offsets is None else self.offsets[:, groups],
            in_features=stop - start,
            first=begin % self.group_size,
        )

    def reordered(self, arrange: Callable[[torch.Tensor], torch.Tensor]) -> "IntGroups":
        """This matrix with its rows in another order, in which `arrange` puts the rows of any tensor."""
        zeros = None if self.zeros is None else arrange(self.zeros.contiguous())
        offsets = None if self.offsets is None else arrange(self.offsets.contiguous())
        codes, scales = arrange(self.codes.contiguous()), arrange(self.scales.contiguous())
        return replace(self, codes=codes, scales=scales, zeros=zeros, offsets=offsets)


@dataclass(frozen=True, slots=True, eq=False)
class Float8Grid(_Tensors):
    """Floats of 8 bits with a scale for every block of rows and columns; a block may be a row, or the whole matrix.

    `weight[n, k] = code[n, k] * scale[(first_row + n) // block_rows, (first_column + k) // block_columns]`.

    codes: float8_e4m3fn [out_features, in_features].
    """

    # float32 [row blocks, column blocks].
    scales: torch.Tensor
    block_rows: int
    block_columns: int
    # Rows and columns of the first blocks that belong to other parts of the matrix, less than a block has.
    first_row: int = 0
    first_column: int = 0
    # Rows that are multiplied by it become floats of so many bits first, 8; 0: they do not.
    input_bits: int = 0
    # The number of these that have one scale.
    input_block: int = GPU_INPUT_BLOCK

    @property
    def in_features(self) -> int:
        """Columns."""
        return self.codes.shape[1]

    @property
    def groups(self) -> Groups:
        """The groups of its inputs."""
        return Groups(self.block_columns, self.first_column)

    @property
    def takes_rounded(self) -> bool:
        """Whether rounded rows can be multiplied by it."""
        return True

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that parts of a fused matrix must have in common to be one product."""
        return Float8Grid, self.block_columns, self.first_column, self.input_bits, self.input_block

    def rows(self, index: slice) -> "Float8Grid":
        """Some outputs: views. Rows that do not follow each other get scales of their own."""
        start, stop, step = index.indices(self.out_features)
        if step != 1:
            by_row = self.by_row()
            return replace(by_row, codes=by_row.codes[index], scales=by_row.scales[index])
        begin = self.first_row + start
        blocks = slice(begin // self.block_rows, -(-(self.first_row + stop) // self.block_rows))
        return replace(
            self, codes=self.codes[index], scales=self.scales[blocks], first_row=begin % self.block_rows
        )

    def columns(self, start: int, stop: int) -> "Float8Grid":
        """The inputs `start .. stop`: views."""
        begin = self.first_column + start
        blocks = slice(begin // self.block_columns, -(-(self.first_column + stop) // self.block_columns))
        codes, scales = self.codes[:, start:stop], self.scales[:, blocks]
        return replace(self, codes=codes, scales=scales, first_column=begin % self.block_columns)

    def by_row(self) -> "Float8Grid":
        """This matrix with scales for every row."""
        rows = (self.first_row + torch.arange(self.out_features, device=self.device)) // self.block_rows
        return replace(self, scales=self.scales[rows], block_rows=1, first_row=0)

    def reordered(self, arrange: Callable[[torch.Tensor], torch.Tensor]) -> "Float8Grid":
        """This matrix with its rows in another order, in which `arrange` puts the rows of any tensor."""
        by_row = self.by_row()
        # Rows of bytes: few ops of PyTorch take floats of 8 bits.
        codes = arrange(self.codes.view(torch.uint8).contiguous()).view(self.codes.dtype)
        return replace(by_row, codes=codes, scales=arrange(by_row.scales))


@dataclass(frozen=True, slots=True, eq=False)
class TableBlocks(_Tensors):
    """Codes of 4 bits that name one of 16 numbers, with a scale for every block of inputs of a row.

    `weight[n, k] = table[code[n, k]] * scale[n, (first + k) // block_size] * tensor_scale`.

    codes: uint8 [out_features, ceil(in_features / 2)], two codes a byte.
    """

    # float32 [16].
    table: torch.Tensor
    # float32, float8_e4m3fn or float8_e8m0fnu (powers of two) [out_features, blocks].
    scales: torch.Tensor
    in_features: int
    block_size: int
    # Columns of the first block that belong to other parts of the matrix: 0 <= first < block_size.
    first: int = 0
    # float32 [1], or None for 1.
    tensor_scale: torch.Tensor | None = None
    # Whether the even column of a byte is in its low half; else it is in the high half.
    low_first: bool = True

    def __post_init__(self) -> None:
        if self.table.dtype != torch.float32:
            raise ValueError(f"TableBlocks: the table is {self.table.dtype}, and must be float32")

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.out_features, self.in_features

    @property
    def groups(self) -> Groups:
        """The groups of its inputs."""
        return Groups(self.block_size, self.first)

    @property
    def input_bits(self) -> int:
        """Rows that are multiplied by it are never rounded."""
        return 0

    @property
    def kind(self) -> tuple[object, ...]:
        """The properties that parts of a fused matrix must have in common to be one product. Tables and
        tensor scales may differ."""
        return TableBlocks, self.block_size, self.first, self.low_first, self.scales.dtype

    def rows(self, index: slice) -> "TableBlocks":
        """Some outputs: views."""
        return replace(self, codes=self.codes[index], scales=self.scales[index])

    def columns(self, start: int, stop: int) -> "TableBlocks":
        """The inputs `start .. stop`: views, but codes that begin inside a byte are copied, low half first."""
        codes, low_first = self.codes, self.low_first
        if start % 2 and not low_first:
            codes, low_first = codes << 4 | codes >> 4, True
        begin = self.first + start
        blocks = slice(begin // self.block_size, -(-(self.first + stop) // self.block_size))
        return replace(
            self,
            codes=columns_of(codes, 4, start, stop),
            scales=self.scales[:, blocks],
            in_features=stop - start,
            first=begin % self.block_size,
            low_first=low_first,
        )

    def reordered(self, arrange: Callable[[torch.Tensor], torch.Tensor]) -> "TableBlocks":
        """This matrix with its rows in another order, in which `arrange` puts the rows of any tensor."""
        # Arranged as integers: few ops of PyTorch take floats of 8 bits.
        integers = torch.uint8 if self.scales.dtype.itemsize == 1 else torch.int32
        scales = arrange(self.scales.contiguous().view(integers)).view(self.scales.dtype)
        return replace(self, codes=arrange(self.codes.contiguous()), scales=scales)


Quantized = IntGroups | Float8Grid | TableBlocks
# A part of a fused matrix: a checkpoint may leave any of them in 16 bits.
Matrix = torch.Tensor | IntGroups | Float8Grid | TableBlocks
# May be multiplied by rounded rows.
Rounding = IntGroups | Float8Grid


def moved(matrix: Quantized, device: torch.device) -> Quantized:
    """This matrix on another device; tensors that are there already are not copied."""
    return replace(matrix, **{name: tensor.to(device) for name, tensor in matrix.tensors.items()})  # type: ignore[arg-type]


def rounds_inputs(matrix: Matrix) -> TypeGuard[Rounding]:
    """Whether rows are rounded that are multiplied by it."""
    return not isinstance(matrix, torch.Tensor) and matrix.input_bits > 0


def input_blocks(matrix: Rounding) -> torch.Tensor:
    """The block of every input, counted up: [in_features]. Rounded rows have a scale for each block.

    A block has `input_block` neighbouring inputs, counted from the begin of a group on, and ends where the group ends.
    A part that lies in one group counts from its own begin.
    """
    inputs, (size, first) = torch.arange(matrix.in_features, device=matrix.device), matrix.groups
    if first + matrix.in_features <= size:
        return inputs // matrix.input_block
    inputs += first
    of_group = -(-size // matrix.input_block)
    return inputs // size * of_group + inputs % size // matrix.input_block


def rounding_on_gpu(matrix: Quantized) -> Quantized:
    """This matrix for a GPU. Where its codes have 8 bits and no zeros, rows are rounded to such numbers, too, and
    matrix units multiply both as they are."""
    block = gpu_input_block(matrix)
    if block == 0 or isinstance(matrix, TableBlocks):
        return matrix
    return replace(matrix, input_bits=8, input_block=block)


def gpu_input_block(matrix: Quantized) -> int:
    """Inputs that a GPU rounds with one scale for this matrix; 0: it rounds none."""
    if not isinstance(matrix, Float8Grid) and not (isinstance(matrix, IntGroups) and _is_whole_bytes(matrix)):
        return 0
    size, first = matrix.groups
    is_one = first + matrix.in_features <= size
    blocks = (GPU_INPUT_BLOCK, GPU_INPUT_BLOCK // 2, INPUT_BLOCK)
    return next((block for block in blocks if is_one or size % block == 0), 0)


def _is_whole_bytes(matrix: IntGroups) -> bool:
    has_middle = matrix.zeros is None and matrix.usual_zero in (0, 128)
    return matrix.bits == 8 and has_middle and matrix.takes_rounded
