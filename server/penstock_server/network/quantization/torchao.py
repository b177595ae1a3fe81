"""Checkpoints of torchao in safetensors, as transformers writes them: the parts of a weight are tensors beside it.

What a weight is follows from the types and shapes of its parts, which torchao fixes for each of its classes.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from penstock_kernels import IntGroups, Quantized

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Entry
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.float8 import Float8
from penstock_server.network.quantization.int_rows import int_groups
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import FLOAT8, FLOATS, Stored, Wanted

_KNOWN = ("quant_method", "quant_type", "include_input_output_embeddings", "untie_embedding_weights")
_SKIPPED = ("modules_to_not_convert",)
_CODES, _SCALE, _ZERO = "_weight_qdata", "_weight_scale", "_weight_zero_point"
# Scales of activations, which stay in 16 bits here.
_OF_ACTIVATIONS = ("_weight_act_quant_scale", "_weight_act_quant_zero_point")
# The types of bytes that hold two codes of 4 bits.
_BYTES = ("I8", "U8")
# Blocks of float8 have so many rows and columns.
_BLOCK = 128
_CLASSES = ("Int4Tensor", "Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")
_SUPPORTED = "Int4Tensor (plain), Int8Tensor, IntxUnpackedToInt8Tensor or Float8Tensor; quantize the model so"


class Torchao:
    """Each matrix tells how it is stored."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, (*_KNOWN, *_SKIPPED))
        self.skipped = Skipped(settings, _SKIPPED)
        self.name = f"torchao {_kind(settings)}"

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        codes = stored.entry(f"{source.name}.{_CODES}")
        for part in _parts(source, stored, codes):
            stored.entry(f"{source.name}._weight_{part}")
        rows, columns = source.shape
        if source.expert is None and codes.dtype == FLOAT8:
            return Float8(_float8_block(source, stored), _SCALE, (), codes=_CODES)
        scales = stored.entry(f"{source.name}.{_SCALE}").shape
        if source.expert is None and codes.dtype in _BYTES and codes.shape == (rows, columns // 2) and scales:
            return Int4(_group_size(columns, scales[0]))
        if source.expert is None and codes.dtype == "I8":
            return Int8(_group_size(columns, scales[-1] if len(scales) == 2 else 1))
        raise StartError(
            f"{codes.file}: tensor {codes.name} is {codes.dtype} of shape {list(codes.shape)}; expected that of "
            f"{_SUPPORTED}"
        )


class Int8(NamedTuple):
    """Signed integers of 8 bits, or of fewer in as many, with scales for the matrix, its rows or groups of them."""

    group_size: int

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        name, (rows, columns) = source.name, source.shape
        groups = -(-columns // self.group_size)
        shapes: tuple[tuple[int, ...], ...] = ((rows, groups),)
        if groups == 1:
            shapes += ((rows,), (1, 1), (1,), ())
        return (
            Wanted(f"{name}.{_CODES}", ("I8",), (source.shape,)),
            Wanted(f"{name}.{_SCALE}", FLOATS, shapes),
            Wanted(f"{name}.{_ZERO}", ("I8", "I32", "I64"), shapes, optional=True),
            *(Wanted(f"{name}.{end}", FLOATS, ((), (1,), (1, 1)), optional=True) for end in _OF_ACTIVATIONS),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        whole = int_groups(
            stored.read(f"{source.name}.{_CODES}"),
            stored.read_scales(f"{source.name}.{_SCALE}"),
            self._zeros(source, stored),
            source.shape[1],
            8,
            self.group_size,
        )
        return whole.rows(rows).columns(columns.start, columns.stop)

    def _zeros(self, source: Source, stored: Stored) -> torch.Tensor | None:
        name = f"{source.name}.{_ZERO}"
        if not stored.has(name):
            return None
        zeros = stored.read(name)
        small = zeros.to(torch.int8)
        if not torch.equal(small.to(zeros.dtype), zeros):
            raise StartError(
                f"{stored.entry(name).file}: tensor {name} has zero points that are not of 8 bits"
            )
        return small if bool(small.any()) else None


class Int4(NamedTuple):
    """Signed integers of 4 bits, the first of two in the low half of a byte; scales and offsets have groups first."""

    group_size: int

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        name, (rows, columns) = source.name, source.shape
        groups = (-(-columns // self.group_size), rows)
        return (
            Wanted(f"{name}.{_CODES}", _BYTES, ((rows, columns // 2),)),
            Wanted(f"{name}.{_SCALE}", FLOATS, (groups,)),
            Wanted(f"{name}.{_ZERO}", FLOATS, (groups,)),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        scales, offsets = (
            stored.read_scales(f"{source.name}.{end}")[:, rows].T.float().contiguous()
            for end in (_SCALE, _ZERO)
        )
        # Signed codes become those from 0 on, which are larger by 8.
        codes = stored.read(f"{source.name}.{_CODES}")[rows].view(torch.uint8) ^ 0x88
        whole = IntGroups(
            codes, scales, None, source.shape[1], 4, self.group_size, offsets=offsets - 8 * scales
        )
        part = whole.columns(columns.start, columns.stop)
        return replace(part, codes=part.codes.clone(memory_format=torch.contiguous_format))


def _parts(source: Source, stored: Stored, codes: Entry) -> list[str]:
    """The parts of a weight that the header of the file lists; none where it says nothing of this one."""
    written = stored.metadata(codes.name).get(f"{source.name}.weight")
    if written is None:
        return []
    try:
        described = json.loads(written)
        kind, parts = described["_type"], described["_tensor_data_names"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise StartError(f"{codes.file}: what it says of {source.name}.weight is not torchao's") from None
    if kind not in _CLASSES or not isinstance(parts, list):
        raise StartError(f"{codes.file}: {source.name}.weight is {kind!r}; expected {_SUPPORTED}")
    return [str(part) for part in parts]


def _group_size(columns: int, num_groups: int) -> int:
    """Inputs of a group; any where the number of groups is wrong, which is refused by its shape."""
    return -(-columns // num_groups) if 0 < num_groups <= columns else columns


def _float8_block(source: Source, stored: Stored) -> tuple[int, int]:
    """Rows and columns of a scale; 0 means all."""
    rows, columns = source.shape
    scales = stored.entry(f"{source.name}.{_SCALE}").shape
    if scales == (-(-rows // _BLOCK), -(-columns // _BLOCK)) and scales != (1, 1):
        return _BLOCK, _BLOCK
    return (1, 0) if scales[:1] == (rows,) and rows > 1 else (0, 0)


def _kind(settings: Fields) -> str:
    """For people: the class that torchao was given."""
    found: Any = settings.get("quant_type")
    given = found.get("default", found) if isinstance(found, dict) else found
    kind = given.get("_type") if isinstance(given, dict) else given
    if not isinstance(kind, str) or not kind:
        raise settings.error("quant_type", found, "an object of torchao's, as transformers writes it")
    return kind
