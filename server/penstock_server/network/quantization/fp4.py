"""Floats of 4 bits as formats store them: two codes a byte, and a scale for every block of inputs."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels import Quantized, TableBlocks

from penstock_server.base.errors import StartError
from penstock_server.network.quantization.scheme import Source
from penstock_server.network.quantization.stored import FLOAT8, POWERS, Stored, Wanted

_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The highest bit of a code is the sign.
FP4_NUMBERS = (*_POSITIVE, *(-number for number in _POSITIVE))
# The exponent that means no number.
_NOT_A_NUMBER = 255


class Fp4(NamedTuple):
    """Two codes a byte, the even input in its low half. Blocks of 16 (NVFP4): scales of 8 bits, and one of the whole
    matrix; of 32 (MXFP4): powers of two."""

    block_size: int
    codes: str
    scales: str
    # The scale of the whole matrix; none for powers of two.
    whole: str = ""
    # Whether numbers are divided by it.
    is_divided: bool = False
    # Whether bytes are grouped by blocks.
    in_blocks: bool = False
    # Scales of activations, which stay in 16 bits here.
    unused: tuple[str, ...] = ("input_scale",)

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        rows, columns = source.shape
        if columns % self.block_size:
            raise StartError(
                f"{source.name} has {columns} inputs; its format has whole blocks of {self.block_size}"
            )
        blocks, each = columns // self.block_size, self.block_size // 2
        shape = source.stacked(rows, blocks, each) if self.in_blocks else source.stacked(rows, columns // 2)
        one = ((), (1,), (1, 1))
        return (
            Wanted(source.tensor(self.codes), ("U8",), (shape,)),
            Wanted(
                source.tensor(self.scales),
                (FLOAT8,) if self.whole else POWERS,
                (source.stacked(rows, blocks),),
            ),
            *((Wanted(source.tensor(self.whole), ("F32",), one),) if self.whole else ()),
            *(
                Wanted(source.tensor(name), ("F32", "F16", "BF16"), one, optional=True)
                for name in self.unused
            ),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        whole = TableBlocks(
            source.of(stored.read(source.tensor(self.codes))).flatten(1),
            torch.tensor(FP4_NUMBERS),
            self._scales(source, stored),
            source.shape[1],
            self.block_size,
            tensor_scale=self._whole(source, stored) if self.whole else None,
        )
        return whole.rows(rows).columns(columns.start, columns.stop)

    def _scales(self, source: Source, stored: Stored) -> torch.Tensor:
        name = source.tensor(self.scales)
        if self.whole:
            return stored.read_scales(name)
        powers = source.of(stored.read(name)).view(torch.uint8)
        if bool((powers == _NOT_A_NUMBER).any()):
            raise stored.not_finite(name)
        return powers.view(torch.float8_e8m0fnu)

    def _whole(self, source: Source, stored: Stored) -> torch.Tensor:
        name = source.tensor(self.whole)
        scale = stored.read_scales(name).reshape(1)
        scale = 1.0 / scale if self.is_divided else scale
        if not bool(scale.isfinite()):
            raise stored.not_finite(name)
        return scale
