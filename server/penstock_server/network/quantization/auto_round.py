"""Checkpoints of AutoRound: the words of GPTQ or of AWQ, with settings of its own and exceptions for some modules."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock_server.architectures.fields import Fields
from penstock_server.files.quantization import refuse_unknown
from penstock_server.network.quantization.awq import AwqWords, read_group_size
from penstock_server.network.quantization.gptq import GptqWords
from penstock_server.network.quantization.scheme import Scheme, Source
from penstock_server.network.quantization.stored import Stored

# Settings that tell how the tool made the checkpoint: no number depends on them. Activations stay in 16 bits here.
_OF_TOOL = (
    "act_bits", "act_data_type", "act_dynamic", "act_group_size", "act_sym", "amp", "autoround_version", "backend",
    "batch_size", "block_name_to_quantize", "dataset", "enable_alg_ext", "enable_minmax_tuning",
    "enable_norm_bias_tuning", "enable_quanted_input", "enable_torch_compile", "gradient_accumulate_steps", "iters",
    "low_cpu_mem_usage", "low_gpu_mem_usage", "lr", "lr_scheduler", "minmax_lr", "model_dtype",
    "not_use_best_mse", "nsamples", "quant_block_list", "quant_lm_head", "lm_head", "scale_dtype", "seed", "seqlen",
    "static_kv_dtype", "sym", "to_quant_block_names", "dynamic_max_gap", "nblocks", "sampler",
)  # fmt: skip
_OF_NUMBERS = ("bits", "group_size", "data_type")
_KNOWN = ("quant_method", "packing_format", "extra_config", *_OF_NUMBERS, *_OF_TOOL)
# How words are packed, and whether stored zero points of GPTQ's are one less than they mean.
_GPTQ = {
    "auto_round": False,
    "auto_round:gptqmodel": False,
    "auto_round:gptq": True,
    "auto_round:auto_gptq": True,
}
# Words are streams of bits, whatever the bits.
_BITS = (2, 3, 4, 5, 6, 7, 8)
_AWQ = ("auto_round:awq", "auto_round:auto_awq")
_PACKING = "packing_format"
# From so many bits on a module is not quantized.
_PLAIN_BITS = 16


class AutoRound:
    """The words of a matrix by the settings, or by an exception for its module."""

    def __init__(self, settings: Fields) -> None:
        refuse_unknown(settings, _KNOWN)
        self._settings = settings
        self._packing = str(settings.get(_PACKING, "auto_round:auto_gptq")).removesuffix(":exllamav2")
        if self._packing not in (*_GPTQ, *_AWQ):
            expected = "auto_round, or that with :auto_gptq, :gptqmodel or :auto_awq; convert the model to one of them"
            raise settings.error(_PACKING, settings.get(_PACKING), expected)
        self._exceptions = _exceptions(settings)
        self._words(settings)
        self.name = f"AutoRound of {settings.get('bits')} bits, packed as {self._packing}"

    def check(self, modules: Sequence[str]) -> None:
        # The head is named where there is none, too; behind a name may be the number of an expert.
        known = {"lm_head", *(module.partition(" ")[0] for module in modules)}
        for pattern, changes in self._exceptions.items():
            is_plain = Fields(changes, self._settings.path).integer("bits", 1) >= _PLAIN_BITS
            if not is_plain and not any(_applies(pattern, module) for module in known):
                raise self._settings.error("extra_config", pattern, "the name of a module of this model")

    def scheme(self, source: Source, stored: Stored) -> Scheme:
        changes = self._changes(source.name)
        settings = Fields({**self._settings.raw, **changes}, self._settings.path)
        if settings.integer("bits") >= _PLAIN_BITS:
            raise self._settings.error("extra_config", source.name, f"{source.name}.weight in 16 bits then")
        return self._words(settings)

    def _changes(self, module: str) -> Mapping[str, Any]:
        """The exceptions for its whole name; else those of a pattern."""
        if module in self._exceptions:
            return self._exceptions[module]
        found = (changes for name, changes in self._exceptions.items() if _applies(name, module))
        return next(found, {})

    def _words(self, settings: Fields) -> GptqWords | AwqWords:
        data_type, bits = settings.get("data_type", "int"), settings.integer("bits")
        if data_type != "int":
            raise settings.error("data_type", data_type, "int")
        allowed = (4,) if self._packing in _AWQ else _BITS
        if bits not in allowed:
            raise settings.error("bits", bits, f"one of {', '.join(map(str, allowed))}")
        group_size = read_group_size(settings, "group_size")
        if self._packing in _AWQ:
            return AwqWords(group_size)
        return GptqWords(bits, group_size, _GPTQ[self._packing])


def _exceptions(settings: Fields) -> dict[str, dict[str, Any]]:
    found = settings.get("extra_config", {})
    if not isinstance(found, dict) or not all(isinstance(changes, dict) for changes in found.values()):
        raise settings.error("extra_config", found, "an object of settings for every module")
    for pattern, changes in found.items():
        try:
            _applies(pattern, "")
        except (re.error, RecursionError, OverflowError):
            raise settings.error("extra_config", pattern, "a name or a regular expression") from None
        refuse_unknown(Fields(changes, settings.path), (*_OF_NUMBERS, *_OF_TOOL), "extra_config: ")
    return found


def _applies(pattern: str, module: str) -> bool:
    return pattern == module or re.fullmatch(pattern, module) is not None
