"""Reads how the weights of a model folder are quantized: which method, and with what settings. Reads no tensor.

A method that is not served is refused here by name, before torch is imported, with what to use instead.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, get_args

from penstock_server.architectures.fields import Fields, read_json
from penstock_server.base.config import AtLoad, StoredFormat
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint

# Methods that `network/quantization` reads.
METHODS = (
    "awq",
    "gptq",
    "auto-round",
    "gguf",
    "bitsandbytes",
    "compressed-tensors",
    "fp8",
    "fbgemm_fp8",
    "modelopt",
    "mxfp4",
    "torchao",
)
# Tools wrote their settings into files of their own before config.json had a place for them, each for one method.
_OWN_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
# Files of these are read nowhere here; what holds the same model and is served.
_ELSEWHERE = {
    **dict.fromkeys(("exl2", "exl3"), "a compressed-tensors W4A16 model"),
    **dict.fromkeys(("hqq", "quanto"), "a compressed-tensors W4A16 or W8A16 model"),
    **dict.fromkeys(("aqlm", "quip", "quip#", "vptq", "spqr", "higgs"), "a compressed-tensors W4A16 model"),
    **dict.fromkeys(("eetq", "quark"), "a compressed-tensors W8A16 model"),
}

# Codes of torchao for a parameter that is no `weight` of a module.
_EXPERTS_OF_TORCHAO = re.compile(r".+\.experts\._\w+_qdata")

# The names that --quantize may have for a folder of quantized weights, and the methods that each name fits.
_FITTING = {
    "awq": ("awq",),
    "gptq": ("gptq",),
    # The name of a kernel, for weights of both.
    "marlin": ("gptq", "awq"),
    "compressed-tensors": ("compressed-tensors",),
    "fbgemm_fp8": ("fbgemm_fp8",),
    "modelopt": ("modelopt",),
    "mxfp4": ("mxfp4",),
    "fp8": ("fp8", "fbgemm_fp8"),
    **dict.fromkeys(("bitsandbytes", "bitsandbytes-nf4", "bitsandbytes-fp4"), ("bitsandbytes",)),
}


class Declared(NamedTuple):
    """The method of a checkpoint and its settings."""

    method: str
    settings: Fields


def read_declared(folder: Path, config: dict[str, Any]) -> Declared | None:
    """The settings in config.json, or in a file of a tool beside it; None: weights are not quantized."""
    path, method, raw = folder / "config.json", None, config.get("quantization_config")
    if raw is None:
        raw = config.get("compression_config")
    if raw is None:
        name = next((name for name in _OWN_FILES if (folder / name).is_file()), None)
        if name is None:
            return None
        path, method, raw = folder / name, _OWN_FILES[name], read_json(folder / name)
    if not isinstance(raw, dict):
        raise Fields({"quantization_config": raw}, path).error("quantization_config", raw, "a JSON object")
    return _declared(path, raw, method)


def _declared(path: Path, raw: dict[str, Any], method: str | None) -> Declared:
    # ModelOpt writes its settings into an object of their own.
    raw = raw["quantization"] if isinstance(raw.get("quantization"), dict) else raw
    settings = Fields(raw, path)
    method = str(raw.get("quant_method", method)).lower()
    if method in METHODS:
        return Declared(method, settings)
    if method in _ELSEWHERE:
        raise StartError(
            f"{path}: weights quantized by {method} are not supported; use {_ELSEWHERE[method]}, "
            "or the model in 16 bits"
        )
    raise settings.error("quant_method", raw.get("quant_method", method), f"one of {', '.join(METHODS)}")


def check_names(declared: Declared | None, checkpoint: Checkpoint) -> None:
    """Raise StartError for tensors of a method in a form that is not read here."""
    if declared is None or declared.method != "torchao":
        return
    stacked = (entry for name, entry in checkpoint.entries.items() if _EXPERTS_OF_TORCHAO.fullmatch(name))
    if (entry := next(stacked, None)) is not None:
        raise StartError(
            f"{entry.file}: tensor {entry.name} has all experts of a layer, which is not supported for torchao; serve "
            "the model in 16 bits with --quantize, or quantize it with a tool that gives each expert modules of its "
            "own, such as compressed-tensors"
        )


def refuse_unknown(settings: Fields, known: Iterable[str], where: str = "") -> None:
    """Raise StartError for a key that is not known and not empty: it may change what the numbers mean."""
    for key in settings.raw.keys() - set(known):
        value = settings.raw[key]
        if value not in (None, False, [], {}, ""):
            raise settings.error(f"{where}{key}", value, "none: this setting is not known here")


def check_asked(asked: AtLoad | StoredFormat, declared: Declared | None, config_path: Path) -> AtLoad | None:
    """How weights are quantized while they are read; None where they are as --quantize has it already.

    Raises StartError where --quantize and the folder contradict each other.
    """
    if asked == "exl2":
        raise StartError(
            "--quantize exl2 is not supported; use a compressed-tensors W4A16 model, or the model in 16 bits with "
            "--quantize int4"
        )
    if declared is not None:
        _check_fits(asked, declared)
        return None
    names: tuple[AtLoad, ...] = get_args(AtLoad)
    at_load = next((name for name in names if name == asked), None)
    if at_load is None:
        raise StartError(
            f"{config_path}: quantization_config is missing, so weights are not quantized, but --quantize asks for "
            f"{asked!r}; leave it out, name a model that is quantized so, or quantize at load with --quantize int4"
        )
    return at_load


def _check_fits(asked: AtLoad | StoredFormat, declared: Declared) -> None:
    settings = declared.settings
    key, value = "quant_method", declared.method
    fits = value in _FITTING.get(asked, ())
    if fits and asked in ("bitsandbytes-nf4", "bitsandbytes-fp4"):
        key, value = _kind_of_bitsandbytes(settings)
        fits = asked == f"bitsandbytes-{value}"
    if not fits:
        raise StartError(
            f"{settings.path}: {key} is {value!r}, but --quantize asks for {asked!r}; leave --quantize out to serve "
            "the weights as they are, or name a model in 16 bits"
        )


def _kind_of_bitsandbytes(settings: Fields) -> tuple[str, Any]:
    """The key that tells how weights are stored, and its value."""
    if not (settings.get("load_in_4bit") or settings.get("_load_in_4bit")):
        return "load_in_4bit", False
    return "bnb_4bit_quant_type", settings.get("bnb_4bit_quant_type", "fp4")
