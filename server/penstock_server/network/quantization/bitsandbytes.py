"""Checkpoints of bitsandbytes: 4 bits (nf4, fp4) by a table in blocks of the flat matrix, and int8 with a scale a row.

Outliers of int8 are not computed apart: activations are not rounded here, so they need no care.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from penstock_kernels import IntGroups, Quantized, TableBlocks

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.skipped import Skipped
from penstock_server.network.quantization.stored import Stored, Wanted

_KNOWN = (
    "quant_method", "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight", "llm_int8_threshold",
)  # fmt: skip
_SKIPPED = ("llm_int8_skip_modules",)
_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
# The largest integer of a row stands for its scale.
_LARGEST = 127.0


class Bitsandbytes:
    """Each matrix tells how it is stored."""

    name = "bitsandbytes"

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, (*_KNOWN, *_SKIPPED))
        self.skipped = Skipped(settings, _SKIPPED)

    def check(self, modules: Sequence[str]) -> None:
        self.skipped.check(modules)

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        self.skipped.refuse(source)
        state = next((name for name in _STATES if stored.has(source.tensor(name))), None)
        return Int8Rows() if state is None else _table(source.tensor(state), source, stored)


class Int8Rows:
    """Integers of 8 bits, and the largest number of every row."""

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        return (
            Wanted(source.tensor("weight"), ("I8",), (source.shape,)),
            Wanted(source.tensor("SCB"), ("F32",), (source.shape[:1],)),
            Wanted(source.tensor("weight_format"), ("U8",), ((), (1,)), optional=True),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        order = source.tensor("weight_format")
        if stored.has(order) and bool(stored.read(order).any()):
            raise StartError(f"{stored.entry(order).file}: tensor {order} is not 0, which means row by row")
        scales = stored.read_scales(source.tensor("SCB")).unsqueeze(1) / _LARGEST
        whole = IntGroups(
            stored.read(source.tensor("weight")), scales, None, source.shape[1], 8, source.shape[1]
        )
        return whole.rows(rows).columns(columns.start, columns.stop)


class TableOfFlat(NamedTuple):
    """Codes of 4 bits, the first in the high half of a byte; a block may go on in the next row."""

    state: str
    block_size: int
    # The block size of scales that are codes themselves, and what is added to them; 0: they are not.
    nested_block_size: int
    nested_offset: float

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        rows, columns = source.shape
        if columns % 2:
            raise StartError(f"{source.name} has {columns} inputs; bitsandbytes has rows of whole bytes only")
        weight, blocks = source.tensor("weight"), -(-rows * columns // self.block_size)
        half = rows * columns // 2
        is_nested = self.nested_block_size > 0
        found = [
            Wanted(weight, ("U8",), ((half, 1), (1, half), (half,))),
            Wanted(f"{weight}.absmax", ("U8",) if is_nested else ("F32",), ((blocks,),)),
            Wanted(f"{weight}.quant_map", ("F32",), ((16,),)),
            Wanted(self.state, ("U8",), (stored.entry(self.state).shape,)),
        ]
        if is_nested:
            nested = -(-blocks // self.nested_block_size)
            found.append(Wanted(f"{weight}.nested_absmax", ("F32",), ((nested,),)))
            found.append(Wanted(f"{weight}.nested_quant_map", ("F32",), ((256,),)))
        return found

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        weight, (_, num_columns) = source.tensor("weight"), source.shape
        # Where a row is no whole number of blocks, smaller blocks that all rows are made of.
        size = math.gcd(num_columns, self.block_size)
        first = torch.arange(rows.start * num_columns, rows.stop * num_columns, size)
        scales = self._scales(weight, stored, first // self.block_size)
        part = TableBlocks(
            stored.read(weight).view(-1, num_columns // 2)[rows],
            stored.read_scales(f"{weight}.quant_map").clone(),
            scales.view(-1, num_columns // size),
            num_columns,
            size,
            low_first=False,
        )
        return part.columns(columns.start, columns.stop)

    def _scales(self, weight: str, stored: Stored, blocks: torch.Tensor) -> torch.Tensor:
        if not self.nested_block_size:
            return stored.read_scales(f"{weight}.absmax")[blocks]
        numbers = stored.read_scales(f"{weight}.nested_quant_map")
        whole = stored.read_scales(f"{weight}.nested_absmax")[blocks // self.nested_block_size]
        return numbers[stored.read(f"{weight}.absmax")[blocks].int()] * whole + self.nested_offset


def _table(name: str, source: Source, stored: Stored) -> TableOfFlat:
    """How a matrix is stored, from the JSON that is kept as a tensor."""
    entry = stored.entry(name)
    try:
        if entry.dtype != "U8" or len(entry.shape) != 1 or entry.shape[0] > 4096:
            raise ValueError(f"{entry.dtype} {list(entry.shape)}")
        state: Any = json.loads(bytes(stored.read(name).tolist()))
        if tuple(state["shape"]) != source.shape:
            raise ValueError(f"shape {state['shape']}, but config.json makes it {list(source.shape)}")
        numbers = state["blocksize"], state.get("nested_blocksize", 0), state.get("nested_offset", 0.0)
        is_right = all(type(size) is int and 0 <= size < 2**20 for size in numbers[:2]) and numbers[0] > 0
        if not is_right or not math.isfinite(numbers[2]):
            raise ValueError(f"blocks of {numbers}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StartError(f"{entry.file}: tensor {name} is no state of bitsandbytes: {error}") from None
    return TableOfFlat(name, *numbers)
