"""Checkpoints of compressed-tensors: integers, packed or as int8, and floats of 8 bits.

Activations stay in 16 bits, whatever a scheme says of them: that is closer to the model than rounding them, too.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from penstock_kernels import Quantized
from penstock_kernels.base.bit_stream import pack, unpack

from penstock_server.architectures.fields import Fields
from penstock_server.base.errors import StartError
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.float8 import Float8
from penstock_server.network.quantization.fp4 import Fp4
from penstock_server.network.quantization.group_order import group_order
from penstock_server.network.quantization.int_rows import int_groups
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.stored import FLOATS, Stored, Wanted

_KNOWN = (
    "quant_method", "format", "quantization_status", "config_groups", "ignore", "kv_cache_scheme", "version",
    "global_compression_ratio",
)  # fmt: skip
_KNOWN_OF_GROUP = ("targets", "weights", "input_activations", "output_activations", "format")
_KNOWN_OF_WEIGHTS = (
    "num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder", "scale_dtype",
    "zp_dtype", "observer", "observer_kwargs",
)  # fmt: skip
# Scales and zero points of activations, which stay in 16 bits here.
_UNUSED = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point")
_INT8_FORMATS = ("int-quantized", "naive-quantized")
_FLOAT8_FORMATS = ("float-quantized", "naive-quantized", "mxfp8-quantized")
# Inputs of a block.
_FP4_BLOCKS = {"nvfp4-pack-quantized": 16, "mxfp4-pack-quantized": 32}
# Classes of torch and transformers that every matrix of ours may be named by.
_CLASSES = ("Linear", "torch.nn.Linear", "Module")


class CompressedTensors:
    """Schemes by the names of modules."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, _KNOWN)
        self._settings = settings
        self.format = str(settings.get("format"))
        self.name = f"compressed-tensors {self.format}"
        self._ignored = _strings(settings, "ignore")
        groups = settings.get("config_groups")
        if not isinstance(groups, dict) or not groups:
            raise settings.error("config_groups", groups, "an object of groups")
        # The most specific first: names, then expressions, then classes; those of a kind by the alphabet.
        found = [pair for name, group in groups.items() for pair in self._targets(name, group)]
        self._schemes = sorted(found, key=lambda pair: (pair[0] in _CLASSES, "re:" in pair[0], pair[0]))

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        ignored = next((target for target in self._ignored if _matches(source.name, target)), None)
        if ignored is not None:
            raise self._settings.error("ignore", ignored, f"{source.name}.weight in 16 bits then")
        found = next((pair for pair in self._schemes if _matches(source.name, pair[0])), None)
        if found is None or found[1] is None:
            targets = [target for target, _ in self._schemes]
            raise self._settings.error(
                "targets", targets, f"one that names {source.name}, or its weight in 16 bits"
            )
        return found[1]

    def check(self, modules: Sequence[str]) -> None:
        known = (*modules, "lm_head")
        if self._ignored and not any(
            _matches(module, target) or module.startswith(f"{target}.")
            for target in self._ignored
            for module in known
        ):
            raise self._settings.error("ignore", self._ignored, "names of modules of this model")

    def _targets(self, name: str, group: Any) -> list[tuple[str, Scheme | None]]:
        where = f"config_groups.{name}."
        if isinstance(group, list):
            # A group may be the name of a preset with its targets.
            group = {"targets": group, "weights": _preset(self._settings, name)}
        if not isinstance(group, dict):
            raise self._settings.error(where[:-1], group, "a scheme")
        fields = Fields(group, self._settings.path)
        refuse_unknown(fields, _KNOWN_OF_GROUP, where)
        scheme = (
            None if (weights := fields.get("weights")) is None else self._scheme_of(fields, weights, where)
        )
        return [(target, scheme) for target in _strings(fields, "targets")]

    def _scheme_of(self, group: Fields, written: Any, where: str) -> Scheme:
        if not isinstance(written, dict):
            raise self._settings.error(f"{where}weights", written, "an object")
        weights, stored_as = Fields(written, self._settings.path), str(group.get("format") or self.format)
        refuse_unknown(weights, _KNOWN_OF_WEIGHTS, f"{where}weights.")
        kind, bits = weights.get("type", "int"), weights.integer("num_bits", 8, high=8)
        if kind == "int" and stored_as == "pack-quantized":
            return _packed(weights, bits)
        if kind == "int" and bits == 8 and stored_as in _INT8_FORMATS:
            return _int8(weights)
        if kind == "float" and bits == 4 and stored_as in _FP4_BLOCKS:
            return _fp4(weights, stored_as)
        if kind == "float" and bits == 8 and stored_as in _FLOAT8_FORMATS:
            return Float8(_float8_block(weights), unused=_UNUSED)
        raise weights.error(
            "format",
            f"{stored_as} of {bits}-bit {kind}",
            "pack-quantized, int-quantized, float-quantized, nvfp4-pack-quantized or mxfp4-pack-quantized",
        )


class Ints(NamedTuple):
    """Integers in `weight` as int8, or in `weight_packed` as words, which are streams of bits."""

    bits: int
    is_packed: bool
    # 0: a scale for every row; -1: one for the matrix.
    group_size: int
    has_zeros: bool
    in_order: bool

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        name, (rows, columns) = source.name, source.shape
        groups = self._groups(columns)
        of_scales: tuple[tuple[int, ...], ...] = ((rows, groups),)
        if self.group_size <= 0:
            of_scales += ((rows,),) if self.group_size == 0 else ((1,), (), (1, 1))
        found = [Wanted(f"{name}.weight_scale", FLOATS, of_scales)]
        if self.is_packed:
            widths = {-(-columns * self.bits // 32), -(-columns // (32 // self.bits))}
            found += [
                Wanted(f"{name}.weight_packed", ("I32",), tuple((rows, width) for width in widths)),
                Wanted(f"{name}.weight_shape", ("I64", "I32"), ((2,),), optional=True),
            ]
        else:
            found.append(Wanted(f"{name}.weight", ("I8",), (source.shape,)))
        if self.has_zeros:
            heights = {-(-rows * self.bits // 32), -(-rows // (32 // self.bits))}
            packed = tuple((height, groups) for height in heights)
            dtype, shapes = (("I32",), packed) if self.is_packed else (("I8",), of_scales)
            found.append(Wanted(f"{name}.weight_zero_point", dtype, shapes))
        if not self.in_order:
            found.append(Wanted(f"{name}.weight_g_idx", ("I32",), ((columns,),), optional=True))
        shapes_of_one = ((), (1,), (1, 1))
        unused = (Wanted(f"{name}.{part}", (*FLOATS, "I8"), shapes_of_one, optional=True) for part in _UNUSED)
        return (*found, *unused)

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        name, (num_rows, num_columns) = source.name, source.shape
        zeros = None
        if self.is_packed:
            self._check_shape(source, stored)
            codes = _dense(stored.read(f"{name}.weight_packed"), self.bits, num_columns)
            if self.has_zeros:
                stored_zeros = stored.read(f"{name}.weight_zero_point").T.contiguous()
                streams = _dense(stored_zeros, self.bits, num_rows).view(torch.uint8)
                zeros = unpack(streams, self.bits, 0, num_rows).T.contiguous()
        else:
            codes = stored.read(f"{name}.weight")
            zeros = stored.read(f"{name}.weight_zero_point") if self.has_zeros else None
        scales = stored.read_scales(f"{name}.weight_scale")
        size = self.group_size if self.group_size > 0 else num_columns
        order = self._order(source, stored)
        whole = int_groups(codes, scales, zeros, num_columns, self.bits, size, order)
        return whole.rows(rows).columns(columns.start, columns.stop)

    def _groups(self, columns: int) -> int:
        return -(-columns // self.group_size) if self.group_size > 0 else 1

    def _check_shape(self, source: Source, stored: Stored) -> None:
        name = f"{source.name}.weight_shape"
        if stored.has(name) and tuple(shape := stored.read(name).tolist()) != source.shape:
            raise StartError(
                f"{stored.entry(name).file}: tensor {name} is {shape}; config.json makes it {list(source.shape)}"
            )

    def _order(self, source: Source, stored: Stored) -> torch.Tensor | None:
        """The group of each column; None where neighbours make a group."""
        name = f"{source.name}.weight_g_idx"
        if self.in_order or not stored.has(name):
            return None
        return group_order(stored.read(name), self.group_size, stored, name)


def _packed(weights: Fields, bits: int) -> Ints:
    strategy = weights.get("strategy", "group" if weights.get("group_size") else "tensor")
    if strategy not in ("group", "channel"):
        raise weights.error("strategy", strategy, "group or channel")
    size = weights.integer("group_size") if strategy == "group" else 0
    return Ints(bits, True, size, not weights.get("symmetric", True), _in_order(weights))


def _int8(weights: Fields) -> Ints:
    strategy = weights.get("strategy", "group" if weights.get("group_size") else "tensor")
    if strategy not in ("group", "channel", "tensor"):
        raise weights.error("strategy", strategy, "group, channel or tensor")
    size = weights.integer("group_size") if strategy == "group" else 0 if strategy == "channel" else -1
    return Ints(8, False, size, not weights.get("symmetric", True), _in_order(weights))


def _in_order(weights: Fields) -> bool:
    """Whether groups are neighbouring columns."""
    order = weights.get("actorder")
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise weights.error("actorder", order, "weight, static, group or dynamic")
    return order in (None, False, "weight", "static")


def _fp4(weights: Fields, stored_as: str) -> Fp4:
    size = _FP4_BLOCKS[stored_as]
    if weights.get("group_size", size) != size:
        raise weights.error("group_size", weights.get("group_size"), str(size))
    if not weights.get("symmetric", True):
        raise weights.error("symmetric", False, "true for floats")
    if size == 16:
        return Fp4(
            size, "weight_packed", "weight_scale", "weight_global_scale", is_divided=True, unused=_UNUSED
        )
    return Fp4(size, "weight_packed", "weight_scale", unused=_UNUSED)


def _float8_block(weights: Fields) -> tuple[int, int]:
    strategy = weights.get("strategy", "tensor")
    if not weights.get("symmetric", True):
        raise weights.error("symmetric", False, "true for floats")
    if strategy == "tensor":
        return 0, 0
    if strategy == "channel":
        return 1, 0
    if strategy == "group":
        return 1, weights.integer("group_size")
    if strategy != "block":
        raise weights.error("strategy", strategy, "tensor, channel, group or block")
    written = weights.get("block_structure")
    sizes = written.split("x") if isinstance(written, str) else written
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(str(size).isdigit() for size in sizes):
        raise weights.error("block_structure", written, "two positive whole numbers")
    both = Fields({"rows": int(sizes[0]), "columns": int(sizes[1])}, weights.path)
    return both.integer("rows"), both.integer("columns")


def _dense(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """Words whose values follow each other; older files leave the rest of a word empty where a value does not fit."""
    each = 32 // bits
    if 32 % bits == 0 or words.shape[1] == -(-count * bits // 32):
        return words
    shifts = torch.arange(0, each * bits, bits, dtype=torch.int32)
    values = (words.unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(1)[:, :count]
    return pack(values.to(torch.uint8), bits)


def _preset(settings: Fields, name: str) -> dict[str, Any] | None:
    """The weights of a scheme by its name."""
    upper = name.upper()
    if upper == "UNQUANTIZED":
        return None
    if upper in ("W8A8", "INT8"):
        return {"num_bits": 8, "type": "int", "strategy": "channel"}
    if upper == "W4A16_ASYM":
        return {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": False}
    if upper == "FP8":
        return {"num_bits": 8, "type": "float", "strategy": "tensor"}
    if upper == "FP8_DYNAMIC":
        return {"num_bits": 8, "type": "float", "strategy": "channel"}
    if upper in ("NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP4XFP8"):
        return {"num_bits": 4, "type": "float"}
    if upper in ("MXFP8", "MXFP8A16"):
        return {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32}
    if upper == "FP8_BLOCK":
        return {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
    found = re.fullmatch(r"W([2-8])A(4|8|16|FP8)", upper)
    if found is None:
        raise settings.error("config_groups", name, "a known preset")
    return {"num_bits": int(found[1]), "type": "int", "strategy": "group", "group_size": 128}


def _strings(fields: Fields, key: str) -> list[str]:
    found = fields.get(key, [])
    if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
        raise fields.error(key, found, "a list of names")
    for target in found:
        try:
            _matches("", target)
        except (re.error, RecursionError, OverflowError):
            raise fields.error(key, target, "a regular expression after re:") from None
    return found


def _matches(name: str, target: str) -> bool:
    """Whether a module has this name or class, or one that begins as the expression says."""
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), name) is not None
    return target == name or target in _CLASSES
