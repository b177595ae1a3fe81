"""Checkpoints of AWQ and GPTQ give the tokens of what their numbers mean, on any number of shards."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checks import check_refusal, check_tokens
from quantized_formats import Format, Made
from quantized_models import (
    Packer,
    Quantized,
    Tensors,
    change_settings,
    healthy,
    quantize,
    round_to_groups,
    words,
)

# The outputs of a word of AWQ, from its low end.
ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def awq(group_size: int) -> Packer:
    def shuffled(values: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(values, (0, -values.shape[1] % 8)).view(len(values), -1, 8)
        return words(padded[:, :, ORDER].flatten(1), 4)

    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        found = round_to_groups(weight, 4, group_size, has_zeros=True)
        tensors = {
            "qweight": shuffled(found.codes.T),
            "qzeros": shuffled(found.zeros.T),
            "scales": found.scales.T,
        }
        return tensors, found.meant

    return pack


def gptq(
    bits: int,
    group_size: int,
    has_zeros: bool = False,
    is_v1: bool = True,
    order: str = "given",
    bias: bool = False,
) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        size = group_size or weight.shape[1]
        group = torch.arange(weight.shape[1]) // size
        group = group[torch.randperm(len(group))] if order == "activations" else group
        found = round_to_groups(weight, bits, size, has_zeros, group)
        zeros = found.zeros - 1 & (1 << bits) - 1 if is_v1 else found.zeros
        tensors = {
            "qweight": words(found.codes, bits).T,
            "qzeros": words(zeros.T, bits),
            "scales": found.scales.T,
            **({} if order == "none" else {"g_idx": group.int()}),
            **({"bias": torch.zeros(len(weight))} if bias else {}),
        }
        return tensors, found.meant

    return pack


def settings(bits: int, group_size: int, **more: Any) -> dict[str, Any]:
    given = {"bits": bits, "group_size": group_size, "desc_act": False, "sym": True, "damp_percent": 0.01}
    return {"quant_method": "gptq", **given, **more}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "AWQ": (awq(16), AWQ),
    "AWQ of rows": (awq(0), {**AWQ, "group_size": -1, "modules_to_not_convert": ["lm_head"]}),
    "GPTQ": (gptq(4, 16), settings(4, 16)),
    "GPTQ with a bias of zeros": (gptq(4, 0, bias=True, order="none"), settings(4, -1)),
    "GPTQ with zero points": (gptq(4, 32, has_zeros=True), settings(4, 32, sym=False)),
    "GPTQ v2": (
        gptq(4, 16, has_zeros=True, is_v1=False),
        settings(4, 16, sym=False, checkpoint_format="gptq_v2"),
    ),
    "GPTQ of 2 bits": (gptq(2, 16, has_zeros=True), settings(2, 16, sym=False)),
    "GPTQ of 3 bits": (gptq(3, 16, has_zeros=True), settings(3, 16, sym=False)),
    "GPTQ of 8 bits": (gptq(8, 32), settings(8, 32)),
    "GPTQ by activations": (
        gptq(4, 16, has_zeros=True, order="activations"),
        settings(4, 16, sym=False, desc_act=True),
    ),
}


FORMAT = Format(MODELS, ("AWQ", "GPTQ of 3 bits", "GPTQ by activations"))


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


def test_rules_change_bits_and_leave_modules_out(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    dynamic = {
        "-:.*k_proj": {},
        "+:.*layers\\.0\\..*down_proj": {"bits": 8, "group_size": 32},
        ".*down_proj": {"bits": 3},
    }

    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if name.endswith("0.mlp.down_proj"):
            return gptq(8, 32)(name, weight)
        return gptq(3 if name.endswith("down_proj") else 4, 16)(name, weight)

    def chosen(name: str) -> bool:
        return ("_proj" in name and "k_proj" not in name) or "lm_head" in name

    of = healthy(saved_model)
    check_tokens(
        quantize(of, tmp_path / "model", pack, settings(4, 16, dynamic=dynamic, lm_head=True), chosen)
    )


@pytest.mark.parametrize(
    ("name", "file", "written"),
    [
        ("AWQ", "quant_config.json", {"w_bit": 4, "q_group_size": 16, "zero_point": True, "version": "GEMM"}),
        ("GPTQ", "quantize_config.json", {"bits": 4, "group_size": 16, "desc_act": False}),
    ],
)
def test_settings_may_lie_in_the_file_of_a_tool(
    name: str, file: str, written: dict[str, Any], model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model(name).folder, tmp_path / "model"))
    change_settings(folder, None)
    (folder / file).write_text(json.dumps(written))
    check_tokens(Quantized(folder, model(name).oracle))


DOWN = "model.layers.1.mlp.down_proj"
# The model, what is changed in the settings, the tensors, and what the refusal names.
SPOILED: dict[str, tuple[str, dict[str, Any], Callable[[Tensors], Any], str]] = {
    "AWQ for gemv": ("AWQ", {"version": "gemv"}, lambda _: None, "version"),
    "AWQ of 8 bits": ("AWQ", {"bits": 8}, lambda _: None, "bits"),
    "AWQ without zero points": ("AWQ", {"zero_point": False}, lambda _: None, "zero_point"),
    "AWQ, unknown setting": ("AWQ", {"clip": 0.9}, lambda _: None, "clip"),
    "AWQ, another group": ("AWQ", {"group_size": 32}, lambda _: None, "qzeros"),
    "AWQ, scaled activation": (
        "AWQ",
        {},
        lambda tensors: tensors.update({"model.layers.0.mlp.act.scales": torch.ones(132)}),
        "act.scales",
    ),
    "AWQ, skipped module is packed": (
        "AWQ",
        {"modules_to_not_convert": ["up_proj"]},
        lambda _: None,
        "up_proj",
    ),
    "AWQ, no zero points": ("AWQ", {}, lambda tensors: tensors.pop(f"{DOWN}.qzeros"), f"{DOWN}.qzeros"),
    "GPTQ, words of marlin": ("GPTQ", {"checkpoint_format": "marlin"}, lambda _: None, "marlin"),
    "GPTQ, other words": ("GPTQ", {"pack_dtype": "int16"}, lambda _: None, "pack_dtype"),
    "GPTQ, unknown setting": ("GPTQ", {"rotation": "hadamard"}, lambda _: None, "rotation"),
    "GPTQ, no scales": ("GPTQ", {}, lambda tensors: tensors.pop(f"{DOWN}.scales"), f"{DOWN}.scales"),
    "GPTQ, a bias": (
        "GPTQ",
        {},
        lambda tensors: tensors.update({f"{DOWN}.bias": torch.ones(72)}),
        f"{DOWN}.bias",
    ),
    **{
        f"GPTQ, a group of {value}": (
            "GPTQ by activations",
            {},
            lambda tensors, value=value: tensors[f"{DOWN}.g_idx"][5:6].fill_(value),  # type: ignore[misc]
            f"{DOWN}.g_idx",
        )
        for value in (-2, 9, 2**31 - 1)
    },
    **{
        f"GPTQ, {key} is {value!r}": ("GPTQ", {key: value}, lambda _: None, names)
        for key, value, names in (
            ("bits", 5, "bits"),
            ("bits", "4", "bits"),
            ("bits", None, "bits"),
            ("bits", 8, "qweight"),
            ("bits", 7.5, "bits"),
            ("desc_act", "yes", "desc_act"),
            ("sym", 3, "sym"),
            ("group_size", 0, "group_size"),
            ("group_size", "16", "group_size"),
            ("group_size", 32, "qzeros"),
            ("dynamic", [1], "dynamic"),
            ("dynamic", {"(": {}}, "dynamic"),
            ("dynamic", {".*": 4}, "dynamic"),
            ("dynamic", {".*": {"secret": 1}}, "secret"),
            ("dynamic", {"vision.*": {"bits": 8}}, "dynamic"),
            ("dynamic", {"-:.*q_proj": {}}, "dynamic"),
        )
    },
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason(
    name: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    of, changes, spoil, names = SPOILED[name]
    check_refusal(model(of), {**MODELS[of][1], **changes}, spoil, names, tmp_path)
