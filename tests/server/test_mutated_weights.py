"""Mutated files of quantized models, by a seed: each is refused with its reason, and none ends the process.

Codes that become other codes are no fault that anybody can see. What is mutated: headers, lengths, names, types and
shapes of tensors, scales that become not finite, and settings. `PENSTOCK_MUTATIONS` says how many of each family.
"""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from driver import make_engine
from penstock_server.base.errors import StartError
from quantized_models import Packer, Quantized, Tensors, change_settings, healthy, maker, quantize
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_quantization_auto_round import MODELS as AUTO_ROUND
from test_quantization_awq_gptq import MODELS as WORDS
from test_quantization_bitsandbytes import MODELS as BITSANDBYTES
from test_quantization_compressed_tensors import MODELS as COMPRESSED
from test_quantization_float8 import MODELS as FLOAT8
from test_quantization_fp4 import MODELS as FP4
from test_quantization_fp4 import SIZES, are_experts, experts
from test_quantization_torchao import MODELS as TORCHAO
from test_quantization_torchao import describe

_COUNT = int(os.environ.get("PENSTOCK_MUTATIONS", "6"))
FAMILIES: dict[str, tuple[Packer, dict[str, Any]]] = {
    "AWQ": WORDS["AWQ"],
    "GPTQ": WORDS["GPTQ of 8 bits"],
    "GPTQ by activations": WORDS["GPTQ by activations"],
    "AutoRound": AUTO_ROUND["words of GPTQ"],
    "bitsandbytes nf4": BITSANDBYTES["nf4 with nested scales"],
    "bitsandbytes int8": BITSANDBYTES["int8"],
    "compressed-tensors packed": COMPRESSED["W4A16, groups with zero points"],
    "compressed-tensors int8": COMPRESSED["W8A8"],
    "fp8": FLOAT8["blocks"],
    "fbgemm": FLOAT8["rows of fbgemm"],
    "compressed-tensors fp8": FLOAT8["compressed-tensors, blocks"],
    "fp8 with powers of two": FLOAT8["blocks with powers of two"],
    "NVFP4": FP4["NVFP4 of compressed-tensors"],
    "NVFP4 of ModelOpt": FP4["NVFP4 of ModelOpt"],
    "MXFP4": FP4["MXFP4 of compressed-tensors"],
    "MXFP8 of ModelOpt": FP4["MXFP8 of ModelOpt"],
    "torchao int8": TORCHAO["int8 in groups with zeros"],
    "torchao int4": TORCHAO["int4"],
    "torchao float8": TORCHAO["float8 of rows"],
}
# All experts of a layer in one tensor.
GPT_OSS = "MXFP4 of experts"
# The class that torchao names for its weights in the header of a file.
CLASSES = {
    "torchao int8": "IntxUnpackedToInt8Tensor",
    "torchao int4": "Int4Tensor",
    "torchao float8": "Float8Tensor",
}
# Tensors that a format does without, where what they say is said elsewhere, too, or is of activations.
_OPTIONAL = ("weight_format", "input_scale", "weight_shape")
_FILE = "model.safetensors"
_MODULES = ("model.layers.1.mlp.down_proj.", "model.layers.1.mlp.experts.down_proj_")


class Case(NamedTuple):
    """The parts of a model folder that a mutation may change."""

    folder: Path
    tensors: Tensors
    settings: dict[str, Any]
    random: random.Random

    @property
    def module(self) -> str:
        """How the tensors of one quantized matrix begin, or of one of all experts."""
        return next(begin for begin in _MODULES if any(name.startswith(begin) for name in self.tensors))

    def names(self) -> list[str]:
        """Its tensors."""
        return sorted(name for name in self.tensors if name.startswith(self.module))

    def of_module(self) -> str:
        """The name of one of them."""
        optional = _OPTIONAL if self.settings.get("desc_act") else (*_OPTIONAL, "g_idx")
        return self.random.choice([name for name in self.names() if not name.endswith(optional)])


def lose(case: Case) -> None:
    del case.tensors[case.of_module()]


def rename(case: Case) -> None:
    name = case.of_module()
    case.tensors[f"{name}_{case.random.randrange(100)}"] = case.tensors.pop(name)


def retype(case: Case) -> None:
    name = case.of_module()
    others = {torch.float64, torch.int16, torch.uint16, torch.bool} - {case.tensors[name].dtype}
    other = case.random.choice(sorted(others, key=str))
    case.tensors[name] = torch.zeros(case.tensors[name].shape, dtype=other)


def reshape(case: Case) -> None:
    name = case.of_module()
    whole = case.tensors[name]
    changed = [
        torch.cat([whole.reshape(-1).view(torch.uint8)] * 2).view(whole.dtype),
        whole[None, None, None],
    ]
    changed += [whole[:-1]] if whole.dim() and len(whole) > 1 else []
    case.tensors[name] = case.random.choice(changed).clone()


def spoil_scale(case: Case) -> None:
    """A number that is none, in a scale or in a code that has such."""
    optional = tuple(end for end in _OPTIONAL if end != "weight_shape")
    found = [
        name
        for name in case.names()
        if _not_numbers(name, case.tensors[name]) and not name.endswith(optional)
    ]
    if not found:
        lose(case)
        return
    name = case.random.choice(found)
    numbers = case.tensors[name].view(-1)
    spoilt = case.random.choice(_not_numbers(name, numbers))
    place = case.random.randrange(len(numbers))
    if numbers.dtype.itemsize == 1:
        numbers.view(torch.uint8)[place] = spoilt
    else:
        numbers[place] = spoilt


def _not_numbers(name: str, tensor: torch.Tensor) -> list[float]:
    """The values of a type that are not finite numbers: for types of 8 bits, as bytes."""
    if tensor.dtype == torch.float8_e4m3fn:
        return [0x7F, 0xFF]
    is_power = tensor.dtype == torch.uint8 and name.endswith(("weight_scale", "_scales"))
    if is_power or tensor.dtype == torch.float8_e8m0fnu:
        return [0xFF]
    return [float("nan"), float("inf"), -float("inf")] if tensor.is_floating_point() else []


def add(case: Case) -> None:
    case.tensors[f"{case.module}{case.random.choice(['scale_2', 'rotation', 'bias', 'weight_global'])}"] = (
        torch.ones(3)
    )


def set_unknown(case: Case) -> None:
    case.settings[f"key_{case.random.randrange(100)}"] = case.random.choice([1, True, "x", [1], {"a": 1}])


def unset(case: Case) -> None:
    case.settings["quant_method"] = case.random.choice(["exl2", "hqq", "aqlm", "", 3, None, [], {"a": 1}])


TENSORS = (lose, rename, retype, reshape, spoil_scale, add, set_unknown, unset)


def cut(content: bytearray, chance: random.Random) -> None:
    del content[-chance.randrange(1, len(content)) :]


def grow(content: bytearray, chance: random.Random) -> None:
    content += chance.randbytes(chance.randrange(1, 100))


def change_length(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(8)] ^= 1 << chance.randrange(8)


def change_offset(content: bytearray, chance: random.Random) -> None:
    """A digit of a number in the header."""
    end = 8 + int.from_bytes(content[:8], "little")
    begin = content.index(b"data_offsets")
    digits = [
        at for at in range(begin, end) if chr(content[at]).isdigit() and content[at - 1] in b"[,0123456789"
    ]
    at = chance.choice(digits)
    content[at] = ord(chance.choice(sorted({*"123456789"} - {chr(content[at])})))


BYTES = (cut, grow, change_length, change_offset)


@pytest.fixture(scope="module")
def model(
    saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Quantized]:
    folder = tmp_path_factory.mktemp("mutated")
    usual = maker(FAMILIES, healthy(saved_model, intermediate_size=144), folder)
    # Whole blocks in every matrix.
    of_blocks = maker(FAMILIES, healthy(saved_model, **SIZES), folder)

    def make(name: str) -> Quantized:
        if name == GPT_OSS:
            options = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9, **SIZES}
            of = healthy(saved_model, family="gpt_oss", **options)
            return quantize(of, folder / "experts", experts, {"quant_method": "mxfp4"}, are_experts)
        return (of_blocks if FAMILIES[name] in FP4.values() else usual)(name)

    return make


@pytest.mark.parametrize("family", [*FAMILIES, GPT_OSS])
def test_mutated_files_are_refused_with_a_reason(family: str, model: Callable[[str], Quantized]) -> None:
    folder = model(family).folder
    if family in CLASSES:
        describe(folder, CLASSES[family])
    make_engine(folder)
    with safe_open(folder / _FILE, "pt") as opened:
        metadata = opened.metadata()
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    whole = (folder / _FILE).read_bytes()
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / _FILE).items()}
    accepted = []
    for seed in range(_COUNT):
        chance = random.Random(f"{family} {seed}")
        mutate = chance.choice((*TENSORS, *BYTES))
        label = f"{seed}: {mutate.__name__}"
        if mutate in BYTES:
            content = bytearray(whole)
            mutate(content, chance)
            (folder / _FILE).write_bytes(content)
        else:
            case = Case(
                folder, {name: tensor.clone() for name, tensor in tensors.items()}, dict(settings), chance
            )
            mutate(case)  # type: ignore[arg-type, call-arg]
            label += f" {set(case.tensors) ^ set(tensors)}"
            save_file(case.tensors, folder / _FILE, metadata)
            change_settings(folder, case.settings)
        try:
            make_engine(folder)
            accepted.append(label)
        except StartError as error:
            message = str(error)
            assert str(folder) in message, label
            assert "\n" not in message, label
        finally:
            change_settings(folder, settings)
            (folder / _FILE).write_bytes(whole)
    assert accepted == []
