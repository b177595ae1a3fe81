"""Checkpoints of GPTQ: integers of 2, 3, 4 or 8 bits in groups, inputs first. Their words are streams of bits along
the inputs, so a matrix is turned once and not unpacked."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from penstock_kernels import IntGroups, Quantized
from penstock_kernels.base.bit_stream import unpack

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.awq import read_group_size
from penstock_server.network.quantization.group_order import group_order
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.stored import FLOATS, Stored, Wanted

# Settings that tell how a tool made the checkpoint, or how it is computed: no number depends on them.
_OF_TOOLS = (
    "act_group_aware", "backend", "batch_size", "block_name_to_quantize", "cache_block_outputs", "damp_percent",
    "damp_auto_increment", "dataset", "desc_act", "disable_exllama", "exllama_config", "hyb_act", "is_marlin_format",
    "lm_head", "max_input_length", "meta", "model_file_base_name", "model_name_or_path", "model_seqlen",
    "module_name_preceding_first_block", "modules_in_block_to_quantize", "mse", "offload_to_disk", "pad_token_id",
    "parallel_packing", "static_groups", "sym", "tokenizer", "true_sequential", "use_cuda_fp16", "use_exllama",
)  # fmt: skip
_KNOWN = (
    "quant_method",
    "bits",
    "group_size",
    "checkpoint_format",
    "format",
    "pack_dtype",
    "dynamic",
    *_OF_TOOLS,
)
BITS = (2, 3, 4, 8)
# So many inputs fill whole words, whatever their bits.
_WHOLE_WORDS = 32


class Gptq:
    """The words of a matrix by the settings, and by rules for the names of modules."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, _KNOWN)
        self._settings = settings
        self._is_v1 = _is_v1(settings)
        self._rules = _rules(settings)
        self._usual = self._words(settings)
        self.name = f"GPTQ of {self._usual.bits} bits in groups of {self._usual.group_size or 'a row'}"

    def check(self, modules: Sequence[str]) -> None:
        for rule, _ in self._rules:
            if not any(_applies(rule, module) for module in modules):
                raise self._settings.error("dynamic", rule, "a rule for modules of this model")

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        for rule, settings in self._rules:
            if not _applies(rule, source.name):
                continue
            if rule.startswith("-:"):
                raise self._settings.error("dynamic", rule, f"{source.name}.weight in 16 bits then")
            return self._words(Fields({**self._settings.raw, **settings}, self._settings.path))
        return self._usual

    def _words(self, settings: Fields) -> "GptqWords":
        bits = settings.get("bits")
        if type(bits) is not int or bits not in BITS:
            raise settings.error("bits", bits, f"one of {', '.join(map(str, BITS))}")
        group_size = read_group_size(settings, "group_size")
        has_order = settings.fact("desc_act") and group_size > 0
        settings.fact("sym")  # what it says is in the zero points
        return GptqWords(bits, group_size, self._is_v1, has_order)


class GptqWords(NamedTuple):
    """One matrix."""

    bits: int
    # 0 means all inputs.
    group_size: int
    # Whether stored zero points are one less than they mean.
    is_v1: bool
    # Whether the settings say that groups may be in the order of activations, which a tensor must tell then.
    has_order: bool = False

    def wanted(self, source: Source, stored: Stored) -> Sequence[Wanted]:
        name, (outputs, inputs) = source.name, source.shape
        groups = -(-inputs // (self.group_size or inputs))
        height, width = (-(-size * self.bits // 32) for size in (inputs, outputs))
        return (
            Wanted(f"{name}.qweight", ("I32",), ((height, outputs),)),
            Wanted(f"{name}.qzeros", ("I32",), ((groups, width),)),
            Wanted(f"{name}.scales", FLOATS, ((groups, outputs),)),
            Wanted(f"{name}.g_idx", ("I32",), ((inputs,),), optional=not self.has_order),
        )

    def read(self, source: Source, stored: Stored, rows: slice, columns: slice) -> Quantized:
        inputs = source.shape[1]
        size = self.group_size or inputs
        order = self._order(source, stored, size)
        # From a whole word on, so that no more than the part stays in memory.
        begin = columns.start // _WHOLE_WORDS * _WHOLE_WORDS
        words = slice(begin * self.bits // 32, -(-columns.stop * self.bits // 32))
        groups = slice(0, -(-inputs // size))
        if order is None:
            groups = slice(begin // size, -(-columns.stop // size))
        part = IntGroups(
            stored.read(f"{source.name}.qweight")[words, rows].T.contiguous().view(torch.uint8),
            stored.read_scales(f"{source.name}.scales")[groups, rows].T.contiguous(),
            self._zeros(stored.read(f"{source.name}.qzeros")[groups], rows),
            columns.stop - begin,
            self.bits,
            size,
            begin % size if order is None else 0,
            None if order is None else order[begin : columns.stop],
        )
        return part.columns(columns.start - begin, columns.stop - begin)

    def _order(self, source: Source, stored: Stored, size: int) -> torch.Tensor | None:
        name = f"{source.name}.g_idx"
        return group_order(stored.read(name), size, stored, name) if stored.has(name) else None

    def _zeros(self, words: torch.Tensor, rows: slice) -> torch.Tensor | None:
        """Outputs first; None where all are in the middle, as of symmetric groups."""
        stored = unpack(words.contiguous().view(torch.uint8), self.bits, rows.start, rows.stop - rows.start)
        mask = (1 << self.bits) - 1
        zeros = (stored + 1 & mask if self.is_v1 else stored).T.contiguous()
        return None if bool((zeros == 1 << self.bits - 1).all()) else zeros


def _is_v1(settings: Fields) -> bool:
    for key in ("checkpoint_format", "format"):
        found = settings.get(key, "gptq")
        if found not in ("gptq", "gptq_v2"):
            raise settings.error(key, found, "gptq or gptq_v2; convert the model to one of them")
        if found == "gptq_v2":
            return False
    if settings.get("pack_dtype", "int32") != "int32":
        raise settings.error("pack_dtype", settings.get("pack_dtype"), "int32")
    return True


def _rules(settings: Fields) -> list[tuple[str, dict[str, Any]]]:
    found = settings.get("dynamic", {})
    if not isinstance(found, dict):
        raise settings.error("dynamic", found, "an object of rules")
    for rule, changes in found.items():
        try:
            _applies(rule, "")
        except (re.error, RecursionError, OverflowError):
            raise settings.error("dynamic", rule, "a regular expression, perhaps after +: or -:") from None
        if not isinstance(changes, dict):
            raise settings.error("dynamic", changes, "an object for every rule")
        refuse_unknown(Fields(changes, settings.path), ("bits", "group_size", *_OF_TOOLS), "dynamic: ")
    return list(found.items())


def _applies(rule: str, module: str) -> bool:
    return re.match(rule.removeprefix("+:").removeprefix("-:"), module) is not None
