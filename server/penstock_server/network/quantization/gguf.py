"""GGUF files: blocks of rows, which are repacked some rows at a time into codes and scales that lie apart.

Scales of two levels are multiplied once, which is exact in float32. Codes become 4 or 8 bits, which kernels know best.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from penstock_kernels import IntGroups, Quantized, TableBlocks
from penstock_kernels.base.bit_stream import pack

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.gguf.block_types import BLOCK_TYPES
from penstock_server.files.gguf.tensors import GgufEntry
from penstock_server.network.quantization.fp4 import FP4_NUMBERS
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.stored import Stored, Wanted
from penstock_server.network.tensor_files import row_order

# So many numbers are repacked at a time.
_MAX_NUMBERS = 1 << 22


class _Blocks(NamedTuple):
    """The contents of blocks [rows, blocks, bytes]."""

    # uint8 below 16, or int8: [rows, columns].
    codes: torch.Tensor
    # float16 or float32 [rows, groups].
    scales: torch.Tensor
    # Added to the numbers of a group.
    offsets: torch.Tensor | None = None


class _Layout(NamedTuple):
    """How blocks of a type become a family."""

    decode: Callable[[torch.Tensor], _Blocks]
    # The numbers that share a scale.
    group_size: int
    # 16 numbers that codes name; none: codes are integers.
    table: Sequence[float] = ()


class Gguf:
    """Every tensor tells its type."""

    name = "GGUF"

    def __init__(self, settings: Fields) -> None:
        self._settings = settings

    def check(self, modules: Sequence[str]) -> None:
        """There are no lists of modules."""

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        entry = stored.entry(source.tensor("weight"))
        if not isinstance(entry, GgufEntry):
            raise self._settings.error("quant_method", "gguf", "a GGUF file, given by its path to --model-id")
        return GgufBlocks(_LAYOUTS[entry.dtype], entry)


class GgufBlocks(NamedTuple):
    """One matrix."""

    layout: _Layout
    entry: GgufEntry

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        return (Wanted(source.tensor("weight"), (self.entry.dtype,), (source.shape,)),)

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        order = row_order(self.entry)[rows]
        begin, end = int(order.min()), int(order.max()) + 1
        found = self._repacked(begin, end, source.shape[1], stored)
        if self.entry.paired_heads:
            found = found.reordered(lambda tensor: tensor[order - begin])
        return found.columns(columns.start, columns.stop)

    def _repacked(self, begin: int, end: int, in_features: int, stored: Stored) -> Quantized:
        """Some rows in the order of the file. They are read, not mapped: pages would stay in memory beside them."""
        step = max(1, _MAX_NUMBERS // in_features)
        parts = [self._decoded(row, min(row + step, end)) for row in range(begin, end, step)]
        codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
        offsets = _together([part.offsets for part in parts])
        if not bool(scales.isfinite().all()) or (offsets is not None and not bool(offsets.isfinite().all())):
            raise StartError(
                f"{self.entry.file}: tensor {self.entry.name} holds numbers that are not finite; download it again"
            )
        if self.layout.table:
            table = torch.tensor(self.layout.table, dtype=torch.float32)
            return TableBlocks(codes, table, scales.float(), in_features, self.layout.group_size)
        bits = 8 if codes.dtype == torch.int8 else 4
        size = self.layout.group_size
        return IntGroups(codes, scales, None, in_features, bits, size, offsets=offsets)

    def _decoded(self, begin: int, end: int) -> _Blocks:
        entry, kind = self.entry, _TYPES[self.entry.dtype]
        raw = bytearray((end - begin) * entry.row_bytes)
        try:
            with entry.file.open("rb") as stream:
                stream.seek(entry.begin + begin * entry.row_bytes)
                count = stream.readinto(raw)
        except OSError as error:
            raise StartError(f"{entry.file}: {error.strerror}") from None
        if count != len(raw):
            raise StartError(f"{entry.file}: truncated inside tensor {entry.name}; download it again")
        blocks = torch.frombuffer(raw, dtype=torch.uint8).view(end - begin, -1, kind.bytes)
        found = self.layout.decode(blocks)
        return found if found.codes.dtype == torch.int8 else found._replace(codes=pack(found.codes, 4))


def _together(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _halves(blocks: torch.Tensor) -> torch.Tensor:
    """Bytes [.., n] with two codes each, to codes [.., 2 n]: those of low halves, then those of high halves."""
    return torch.cat((blocks & 15, blocks >> 4), dim=-1)


def _float16(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """The float that begins with this byte of every block: [rows, blocks]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _q4_0(blocks: torch.Tensor) -> _Blocks:
    return _Blocks(_halves(blocks[..., 2:]).flatten(1), _float16(blocks, 0))


def _q4_1(blocks: torch.Tensor) -> _Blocks:
    return _Blocks(_halves(blocks[..., 4:]).flatten(1), _float16(blocks, 0), _float16(blocks, 2))


def _q5_0(blocks: torch.Tensor) -> _Blocks:
    fifth = _bits(blocks[..., 2:6])
    return _Blocks(_signed(_halves(blocks[..., 6:]) | fifth << 4, 16), _float16(blocks, 0))


def _q5_1(blocks: torch.Tensor) -> _Blocks:
    fifth = _bits(blocks[..., 4:8])
    codes = _signed(_halves(blocks[..., 8:]) | fifth << 4, 0)
    return _Blocks(codes, _float16(blocks, 0), _float16(blocks, 2))


def _q8_0(blocks: torch.Tensor) -> _Blocks:
    return _Blocks(blocks[..., 2:].contiguous().view(torch.int8).flatten(1), _float16(blocks, 0))


def _q2_k(blocks: torch.Tensor) -> _Blocks:
    scales, lows = blocks[..., :16] & 15, blocks[..., :16] >> 4
    return _Blocks(
        _quarters(blocks[..., 16:80]).flatten(1),
        _times(scales.float(), _float16(blocks, 80)),
        -_times(lows.float(), _float16(blocks, 82)),
    )


def _q3_k(blocks: torch.Tensor) -> _Blocks:
    """Codes of 2 bits and a third one, less 4: as codes less 8."""
    third = torch.stack([blocks[..., :32] >> place & 1 for place in range(8)], dim=-2).flatten(-2)
    low, high = _halves(blocks[..., 96:104]), blocks[..., 104:108]
    high = torch.cat([high >> 2 * place & 3 for place in range(4)], dim=-1)
    scales = (low | high << 4).float() - 32
    codes = (_quarters(blocks[..., 32:96]) | third << 2) + 4
    return _Blocks(codes.flatten(1), _times(scales, _float16(blocks, 108)))


def _q4_k(blocks: torch.Tensor) -> _Blocks:
    codes = torch.cat([_halves(part) for part in torch.split(blocks[..., 16:], 32, dim=-1)], dim=-1)
    return _Blocks(codes.flatten(1), *_scales_of_eight(blocks))


def _q5_k(blocks: torch.Tensor) -> _Blocks:
    low = torch.cat([_halves(part) for part in torch.split(blocks[..., 48:], 32, dim=-1)], dim=-1)
    fifth = torch.cat([blocks[..., 16:48] >> place & 1 for place in range(8)], dim=-1)
    return _Blocks(_signed(low | fifth << 4, 0), *_scales_of_eight(blocks))


def _scales_of_eight(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales and offsets of eight groups, of 6 bits: two floats, and 12 bytes."""
    first, second, third = torch.split(blocks[..., 4:16], 4, dim=-1)
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), dim=-1)
    lows = torch.cat((second & 63, third >> 4 | second >> 6 << 4), dim=-1)
    return _times(scales.float(), _float16(blocks, 0)), -_times(lows.float(), _float16(blocks, 2))


def _q6_k(blocks: torch.Tensor) -> _Blocks:
    low = torch.cat([_halves(part) for part in torch.split(blocks[..., :128], 64, dim=-1)], dim=-1)
    codes = low | _quarters(blocks[..., 128:192]) << 4
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float()
    return _Blocks(_signed(codes, 32), _times(scales, _float16(blocks, 208)))


def _iq4_xs(blocks: torch.Tensor) -> _Blocks:
    codes = torch.cat([_halves(part) for part in torch.split(blocks[..., 8:], 16, dim=-1)], dim=-1)
    pairs = blocks[..., 4:8]
    low = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
    high = torch.stack([blocks[..., 2:4] >> 2 * place & 3 for place in range(4)], dim=-1).flatten(-2)
    scales = (low | high << 4).float() - 32
    return _Blocks(codes.flatten(1), _times(scales, _float16(blocks, 0)))


def _mxfp4(blocks: torch.Tensor) -> _Blocks:
    powers = blocks[..., 0].contiguous().view(torch.float8_e8m0fnu).float()
    return _Blocks(_halves(blocks[..., 1:]).flatten(1), powers)


def _bits(blocks: torch.Tensor) -> torch.Tensor:
    """The bits of bytes, the lowest first: [.., n] to [.., 8 n]."""
    return torch.stack([blocks >> place & 1 for place in range(8)], dim=-1).flatten(-2)


def _quarters(blocks: torch.Tensor) -> torch.Tensor:
    """Bytes [.., 64] with four codes each, to codes [.., 256]: those of 32 bytes by their place, then the others'."""
    halves = blocks.reshape(*blocks.shape[:-1], 2, 1, 32)
    return torch.cat([halves >> 2 * place & 3 for place in range(4)], dim=-2).flatten(-3)


def _signed(codes: torch.Tensor, zero: int) -> torch.Tensor:
    """Codes of more than 4 bits as those of 8: [rows, columns]."""
    return (codes.to(torch.int8) - zero).flatten(1)


def _times(scales: torch.Tensor, of_blocks: torch.Tensor) -> torch.Tensor:
    """Scales of the groups of a block [.., groups] times that of the block [..]."""
    return (scales * of_blocks.float().unsqueeze(-1)).flatten(1)


_TYPES = {kind.name: kind for kind in BLOCK_TYPES.values()}
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_LAYOUTS = {
    "Q4_0": _Layout(_q4_0, 32),
    "Q4_1": _Layout(_q4_1, 32),
    "Q5_0": _Layout(_q5_0, 32),
    "Q5_1": _Layout(_q5_1, 32),
    "Q8_0": _Layout(_q8_0, 32),
    "Q2_K": _Layout(_q2_k, 16),
    "Q3_K": _Layout(_q3_k, 16),
    "Q4_K": _Layout(_q4_k, 32),
    "Q5_K": _Layout(_q5_k, 32),
    "Q6_K": _Layout(_q6_k, 16),
    "IQ4_NL": _Layout(_q4_0, 32, _IQ4),
    "IQ4_XS": _Layout(_iq4_xs, 32, _IQ4),
    "MXFP4": _Layout(_mxfp4, 32, FP4_NUMBERS),
}
