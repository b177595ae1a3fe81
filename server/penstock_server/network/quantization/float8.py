"""Floats of 8 bits as formats store them: a tensor of codes and one of scales, for the tensor, rows or blocks."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import Float8Grid, Quantized

from penstock_server.network.quantization.scheme import Source
from penstock_server.network.quantization.stored import FLOAT8, FLOATS, POWERS, Stored, Wanted

# The bytes of a float8_e4m3fn that is no number, without its sign.
_NOT_A_NUMBER = 0x7F


class Float8(NamedTuple):
    """Codes in `weight`, or elsewhere, multiplied by scales of blocks of so many rows and columns; 0 means all."""

    block: tuple[int, int]
    scale: str = "weight_scale"
    # Scales of activations, which stay in 16 bits here.
    unused: tuple[str, ...] = ("input_scale",)
    codes: str = "weight"

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        rows, columns = (
            -(-size // (block or size)) for size, block in zip(source.shape, self.block, strict=True)
        )
        shapes: tuple[tuple[int, ...], ...] = ((rows, columns),)
        if columns == 1:
            shapes += ((rows,),)
        if rows == columns == 1:
            shapes += ((),)
        return (
            Wanted(source.tensor(self.codes), (FLOAT8,), (source.stacked(*source.shape),)),
            Wanted(
                source.tensor(self.scale), (*FLOATS, *POWERS), tuple(source.stacked(*one) for one in shapes)
            ),
            *(Wanted(source.tensor(name), FLOATS, ((), (1,)), optional=True) for name in self.unused),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        name = source.tensor(self.codes)
        codes = source.of(stored.read(name))
        scales = self._scales(source, stored)
        block_rows, block_columns = (
            block or size for size, block in zip(source.shape, self.block, strict=True)
        )
        grid_columns = -(-source.shape[1] // block_columns)
        whole = Float8Grid(codes, scales.reshape(-1, grid_columns), block_rows, block_columns)
        part = whole.rows(rows).columns(columns.start, columns.stop)
        _check_numbers(part.codes, name, stored)
        return part

    def _scales(self, source: Source, stored: Stored) -> torch.Tensor:
        """Bytes of powers of two are no floats in the file, but one of them is no number."""
        name = source.tensor(self.scale)
        scales = as_floats(source.of(stored.read_scales(name)))
        if not bool(scales.isfinite().all()):
            raise stored.not_finite(name)
        return scales


def as_floats(scales: torch.Tensor) -> torch.Tensor:
    """Scales of any type; bytes are powers of two."""
    if scales.dtype == torch.uint8:
        scales = scales.view(torch.float8_e8m0fnu)
    return scales.float()


def _check_numbers(codes: torch.Tensor, name: str, stored: Stored) -> None:
    """Some rows at a time: the comparison takes as much memory as what it compares."""
    for rows in torch.split(codes.view(torch.uint8), 4096):
        if bool(((rows & _NOT_A_NUMBER) == _NOT_A_NUMBER).any()):
            raise stored.not_finite(name)
