"""Checkpoints of torchao in safetensors give the tokens of what their numbers mean, on any number of ranks."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checks import check_refusal, refusal
from quantized_formats import Format, Made
from quantized_models import Packer, Quantized, Tensors, healthy, quantize, round_to_groups
from safetensors import safe_open
from safetensors.torch import load_file, save_file

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0


def settings(kind: str, **more: Any) -> dict[str, Any]:
    """The settings as transformers writes them."""
    quant_type = {"default": {"_type": kind, "_version": 2, "_data": {"set_inductor_config": True}}}
    flags = {"include_input_output_embeddings": False, "untie_embedding_weights": False}
    return {
        "quant_method": "torchao",
        "quant_type": quant_type,
        "modules_to_not_convert": None,
        **flags,
        **more,
    }


def parts(**tensors: torch.Tensor) -> Tensors:
    return {f"._weight_{name}": tensor for name, tensor in tensors.items()}


def int8(group_size: int = 0, has_zeros: bool = False, zero_dtype: torch.dtype = torch.int8) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        found = round_to_groups(weight, 8, group_size, has_zeros, scale_dtype=torch.float32)
        codes = (found.codes.int() - 128).to(torch.int8)
        zeros = (found.zeros.int() - 128).to(zero_dtype)
        more = {"zero_point": zeros} if has_zeros else {}
        return parts(qdata=codes, scale=found.scales, **more), found.meant

    return pack


def int4(group_size: int, dtype: torch.dtype = torch.int8) -> Packer:
    """Codes from -8 to 7; the zero point is what the code 0 means."""

    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        groups = weight.float().view(len(weight), -1, group_size)
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low) / 15).clamp(min=1e-6).bfloat16().float()
        zeros = (low + 8 * scales).bfloat16().float()
        codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15).int() - 8
        meant = codes * scales[..., None] + zeros[..., None]
        nibbles = codes.flatten(1) & 15
        packed = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).to(torch.uint8).view(dtype)
        tensors = parts(qdata=packed, scale=scales.T.bfloat16(), zero_point=zeros.T.bfloat16())
        return tensors, meant.flatten(1)

    return pack


def float8(by_row: bool) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = weight.abs().amax(1, keepdim=True) if by_row else weight.abs().amax().view(1, 1)
        scales = largest.float() / LARGEST
        codes = (weight.float() / scales).clamp(-LARGEST, LARGEST).to(FLOAT8)
        return parts(qdata=codes, scale=scales), codes.float() * scales

    return pack


MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "int8 of rows": (int8(), settings("Int8WeightOnlyConfig", modules_to_not_convert=["lm_head"])),
    "int8 with activations": (int8(), settings("Int8DynamicActivationInt8WeightConfig")),
    "int8 in groups with zeros": (int8(24, has_zeros=True), settings("IntxWeightOnlyConfig")),
    "int8 with zeros of 64 bits": (int8(0, True, torch.int64), settings("Int8WeightOnlyConfig")),
    "int4": (int4(24), settings("Int4WeightOnlyConfig")),
    "int4 in unsigned bytes": (int4(24, torch.uint8), settings("Int4WeightOnlyConfig")),
    "float8 of rows": (float8(True), settings("Float8DynamicActivationFloat8WeightConfig")),
    "float8": (float8(False), settings("Float8WeightOnlyConfig")),
}


CLASSES = {
    "int8 in": "IntxUnpackedToInt8Tensor",
    "int8": "Int8Tensor",
    "int4": "Int4Tensor",
    "float8": "Float8Tensor",
}


def describe(folder: Path, kind: str) -> None:
    """Write what torchao says of every weight into the header of the file."""
    tensors = load_file(folder / "model.safetensors")
    parts_of: dict[str, list[str]] = {}
    for name in tensors:
        module, mark, part = name.partition("._weight_")
        if mark:
            parts_of.setdefault(f"{module}.weight", []).append(part)
    plain = {name: json.dumps({"_type": "Tensor"}) for name in tensors if "._weight_" not in name}
    described = {
        name: json.dumps({"_type": kind, "_data": {}, "_tensor_data_names": parts})
        for name, parts in parts_of.items()
    }
    names = {"tensor_names": json.dumps([*plain, *described])}
    save_file(tensors, folder / "model.safetensors", {**plain, **described, **names})


def describe_as_its_class(name: str, folder: Path) -> None:
    """Describes a model of the table as torchao writes it."""
    describe(folder, next(kind for begin, kind in CLASSES.items() if name.startswith(begin)))


FORMAT = Format(
    MODELS,
    ("int8 in groups with zeros", "int4", "float8 of rows"),
    {"intermediate_size": 144},
    describe_as_its_class,
)


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


def test_a_part_that_the_header_lists_and_another_class_are_refused(
    model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    for number, kind in enumerate(("IntxUnpackedToInt8Tensor", "NVFP4Tensor")):
        folder = Path(shutil.copytree(model("int8 in groups with zeros").folder, tmp_path / str(number)))
        describe(folder, kind)
        with safe_open(folder / "model.safetensors", "pt") as opened:
            metadata = opened.metadata()
        tensors = load_file(folder / "model.safetensors")
        if number == 0:
            del tensors[UP + "zero_point"]
        save_file(tensors, folder / "model.safetensors", metadata)
        assert (UP + "zero_point is in no safetensors file", "'NVFP4Tensor'")[number] in refusal(folder)


UP = "model.layers.0.mlp.up_proj._weight_"


@pytest.mark.parametrize(
    ("name", "changes", "spoil", "names"),
    [
        ("int8 of rows", {"quant_type": None}, lambda tensors: None, "quant_type is None"),
        ("int8 of rows", {"quant_type_kwargs": {"a": 1}}, lambda tensors: None, "quant_type_kwargs"),
        ("int8 of rows", {}, lambda tensors: tensors.pop(UP + "scale"), UP + "scale is in no safetensors file"),
        ("int8 of rows", {}, lambda tensors: tensors[UP + "scale"].fill_(float("nan")), UP + "scale holds numbers"),
        ("int8 of rows", {}, lambda tensors: tensors.update({UP + "act_pre_scale": torch.ones(1)}), "act_pre_scale"),
        ("int8 of rows", {"modules_to_not_convert": ["up_proj"]}, lambda tensors: None, "up_proj"),
        ("int8 with zeros of 64 bits", {}, lambda tensors: tensors[UP + "zero_point"].fill_(300), "not of 8 bits"),
        ("int4", {}, lambda tensors: tensors.pop(UP + "zero_point"), UP + "zero_point is in no safetensors file"),
        ("int4", {}, lambda tensors: tensors.update({UP + "qdata": torch.zeros(4, 4, 4, 4).int()}), "(plain)"),
        ("float8", {}, lambda tensors: tensors.update({UP + "scale": torch.ones(2, 2)}), UP + "scale has shape [2, 2]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    name: str,
    changes: dict[str, Any],
    spoil: Callable[[dict[str, torch.Tensor]], object],
    names: str,
    model: Callable[[str], Quantized],
    tmp_path: Path,
) -> None:
    check_refusal(model(name), {**MODELS[name][1], **changes}, spoil, names, tmp_path)


def test_experts_in_one_tensor_are_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    """The tensors have the names that torchao gives the parts of a parameter that is no `weight`."""
    sizes = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 48, "norm_topk_prob": True}
    of = healthy(saved_model, family="qwen3_moe", **sizes)
    packer, written = MODELS["int8 of rows"]
    model = quantize(of, tmp_path / "made", packer, written, lambda name: "_proj.weight" in name)

    def stack(tensors: Tensors) -> None:
        for layer in range(2):
            prefix = f"model.layers.{layer}.mlp.experts."
            for part in ("gate_proj", "up_proj", "down_proj"):
                for end in ("qdata", "scale"):
                    each = [tensors.pop(f"{prefix}{number}.{part}._weight_{end}") for number in range(2)]
                    tensors[f"{prefix}_{part}_{end}"] = torch.stack(each)

    check_refusal(model, written, stack, "has all experts of a layer", tmp_path)
