"""Quantizing at load: matrices of 16 or 32 bits become weights in few bits while they are read, some rows at a time.

A rank reads whole groups around its part, so its codes are those of the whole matrix, whatever the number of ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from penstock_kernels import Quantized, all_finite

from penstock_server.base.config import AtLoad
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.quantize_cache.entry import Entry
from penstock_server.network.quantization.kept import Kept, Layout, NothingKept, open_kept
from penstock_server.network.quantization.quantization import Quantization, QuantizationFacts, last_parts
from penstock_server.network.quantization.rounded_inputs import NOT_ROUNDED, Rounding
from penstock_server.network.quantization.rounding import (
    FP4,
    NF4,
    TABLE_BLOCK,
    to_float8_rows,
    to_int4_groups,
    to_int8_rows,
    to_table_blocks,
)
from penstock_server.network.quantization.scheme import MatrixPart, Scheme, Source
from penstock_server.network.quantization.stored import FLOATS, Stored, Wanted

# So many numbers become floats at a time: on a CPU they stay in its caches.
_MAX_NUMBERS = {"cpu": 1 << 18, "cuda": 1 << 24}
_INT4_GROUPS = (128, 32)


class Target(NamedTuple):
    """The format that a matrix is quantized to."""

    # For people.
    name: str
    # Inputs that have a scale together, of a row of so many; a part must begin and end with them.
    group_size: Callable[[int], int]
    # Floats, and the size of a group.
    quantize: Callable[[torch.Tensor, int], Quantized]


def _int4_group(in_features: int) -> int:
    """The larger one where it divides a row."""
    return next((size for size in _INT4_GROUPS if in_features % size == 0), _INT4_GROUPS[-1])


def _row(in_features: int) -> int:
    return in_features


def _table_block(_in_features: int) -> int:
    return TABLE_BLOCK


_INT8 = Target("int8, a scale for every row", _row, lambda rows, _size: to_int8_rows(rows))
_TABLE = "in blocks of 64"
TARGETS: dict[AtLoad, Target] = {
    "fp8": Target("fp8, a scale for every row", _row, lambda rows, _size: to_float8_rows(rows)),
    "int8": _INT8,
    "eetq": _INT8,
    "bitsandbytes": _INT8,
    "int4": Target("int4 in groups", _int4_group, to_int4_groups),
    "bitsandbytes-nf4": Target(f"nf4 {_TABLE}", _table_block, lambda rows, _size: to_table_blocks(rows, NF4)),
    "bitsandbytes-fp4": Target(f"fp4 {_TABLE}", _table_block, lambda rows, _size: to_table_blocks(rows, FP4)),
}


class QuantizationAtLoad(Quantization):
    """All matrices of layers, but those that are marked as sensitive."""

    def __init__(
        self,
        asked: AtLoad,
        checkpoint: Checkpoint,
        device: torch.device,
        rounding: Rounding = NOT_ROUNDED,
        entry: Entry | None = None,
    ) -> None:
        target = TARGETS[asked]
        super().__init__(f"{asked} at load ({target.name})", checkpoint, rounding)
        self._scheme = Rounded(target, device)
        self._entry = entry
        self._kept: Kept = NothingKept()

    def find(self, source: Source) -> Scheme | None:
        return None if source.is_sensitive else self._scheme

    @contextmanager
    def reading(self, parts: Sequence[MatrixPart]) -> Iterator[None]:
        if self._entry is None:
            yield
            return
        with open_kept(self._entry, self._scheme.layout(parts)) as self._kept:
            yield

    def facts(self) -> QuantizationFacts:
        return super().facts()._replace(from_cache=self._kept.is_found)

    def _part(self, part: MatrixPart) -> Quantized:
        return self._kept.part(part, super()._part)

    def check_all(self, plain: Iterable[str]) -> None:
        for name in plain:
            # Biases of all experts are one tensor, which some ranks have none of.
            if len(self.stored.entry(name).shape) > 1 and not name.endswith("bias"):
                self.plain.add(last_parts(name.removesuffix(".weight")))
        if not self.quantized:
            raise StartError(
                f"{self.stored.checkpoint.folder}: no matrix of this model can be quantized; leave --quantize out"
            )


class Rounded(NamedTuple):
    """Floats in the files."""

    target: Target
    device: torch.device

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        shape = source.shape[::-1] if source.inputs_first else source.shape
        return (Wanted(source.tensor("weight"), FLOATS, (source.stacked(*shape),)),)

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        around = self._around(source, columns)
        name = source.tensor("weight")
        numbers = source.of(stored.read(name))
        numbers = (numbers.T if source.inputs_first else numbers)[rows, around]
        quantize = partial(self._quantize, source=source, columns=columns)
        return _joined([quantize(some) for some in self._floats(numbers, name, stored)])

    def layout(self, parts: Sequence[MatrixPart]) -> Layout:
        """The layout of all parts: all but their numbers, found by a row of zeros."""
        rows: dict[tuple[int, int, int], Quantized] = {}
        for source, _, columns, _ in parts:
            key = source.shape[1], columns.start, columns.stop
            if key not in rows:
                around = self._around(source, columns)
                zeros = torch.zeros(1, around.stop - around.start, device="cpu")
                rows[key] = self._quantize(zeros, source, columns)
        return Layout(
            (part, rows[part.source.shape[1], part.columns.start, part.columns.stop]) for part in parts
        )

    def _around(self, source: Source, columns: slice) -> slice:
        """The columns of all groups of which some are wanted."""
        group_size = self.target.group_size(source.shape[1])
        begin = columns.start // group_size * group_size
        return slice(begin, min(-(-columns.stop // group_size) * group_size, source.shape[1]))

    def _quantize(self, rows: torch.Tensor, source: Source, columns: slice) -> Quantized:
        """Rows of `_around` to a part."""
        begin = self._around(source, columns).start
        whole = self.target.quantize(rows, self.target.group_size(source.shape[1]))
        return _columns(whole, columns.start - begin, columns.stop - begin)

    def _floats(self, numbers: torch.Tensor, name: str, stored: Stored) -> Iterator[torch.Tensor]:
        """Some rows at a time, checked, where they are computed."""
        step = max(1, _MAX_NUMBERS[self.device.type] // numbers.shape[1])
        for some in torch.split(numbers, step):
            if not all_finite(some):
                raise stored.not_finite(name)
            # Codes lie as the numbers that they are made of.
            yield some.to(self.device, torch.float32).contiguous()


def _columns(matrix: Quantized, start: int, stop: int) -> Quantized:
    """A part that does not keep the memory of the rest."""
    if (start, stop) == (0, matrix.shape[1]):
        return matrix
    part = matrix.columns(start, stop)
    return replace(part, codes=part.codes.clone(memory_format=torch.contiguous_format))


def _joined(parts: list[Quantized]) -> Quantized:
    """The rows of all, which have one table if any."""
    first = parts[0]
    if len(parts) == 1:
        return first
    names = first.tensors.keys() - {"table"}
    joined = {name: _concatenated([part.tensors[name] for part in parts]) for name in names}
    return replace(first, **joined)  # type: ignore[arg-type]


def _concatenated(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Floats of 8 bits as bytes: few ops of PyTorch take them."""
    if tensors[0].dtype.itemsize > 1:
        return torch.cat(tensors)
    return torch.cat([tensor.view(torch.uint8) for tensor in tensors]).view(tensors[0].dtype)
