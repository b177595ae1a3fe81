"""Checkpoints of compressed-tensors give the tokens of what their numbers mean, on any number of shards."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import make_engine
from quantized_checks import check_refusal, check_tokens
from quantized_formats import Format, Made
from quantized_models import (
    Packer,
    Quantized,
    Tensors,
    healthy,
    quantize,
    round_to_groups,
    words,
)
from safetensors.torch import load_file, save_file
from test_weights import is_in_file

Weights = dict[str, Any]


def settings(weights: Weights, stored_as: str, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": stored_as, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head"], "version": "0.20.0", **more,
    }  # fmt: skip


def ints(bits: int, group_size: int, symmetric: bool = True, **more: Any) -> Weights:
    strategy = "group" if group_size else "channel"
    return {
        "num_bits": bits, "type": "int", "strategy": strategy, "group_size": group_size or None,
        "symmetric": symmetric, "dynamic": False, **more,
    }  # fmt: skip


def packed(
    bits: int, group_size: int, has_zeros: bool = False, is_old: bool = False, order: bool = False
) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        shuffled = torch.randperm(weight.shape[1]) // group_size if order else None
        found = round_to_groups(weight, bits, group_size, has_zeros, shuffled)
        pack_words = old_words if is_old else words
        tensors = {
            "weight_packed": pack_words(found.codes, bits),
            "weight_scale": found.scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if has_zeros:
            tensors["weight_zero_point"] = pack_words(found.zeros.T, bits).T
        if shuffled is not None:
            tensors["weight_g_idx"] = shuffled.int()
        return tensors, found.meant

    return pack


def old_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs as many whole values as fit into a word; the rest of the word is empty."""
    each = 32 // bits
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % each)).view(len(values), -1, each).long()
    numbers = (padded << torch.arange(each) * bits).sum(-1)
    return torch.where(numbers >= 1 << 31, numbers - (1 << 32), numbers).int()


def int8(group_size: int, has_zeros: bool = False) -> Packer:
    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        found = round_to_groups(weight, 8, group_size, has_zeros, scale_dtype=torch.float32)
        tensors = {"weight": (found.codes.int() - 128).to(torch.int8), "weight_scale": found.scales}
        if has_zeros:
            tensors["weight_zero_point"] = (found.zeros.int() - 128).to(torch.int8)
        return tensors, found.meant

    return pack


MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "W4A16, groups": (packed(4, 16), settings(ints(4, 16), "pack-quantized")),
    "W4A16, groups with zero points": (
        packed(4, 32, has_zeros=True),
        settings(ints(4, 32, symmetric=False), "pack-quantized"),
    ),
    "W4A16, rows with zero points": (
        packed(4, 0, has_zeros=True),
        settings(ints(4, 0, symmetric=False), "pack-quantized"),
    ),
    "W3A16": (packed(3, 16, has_zeros=True), settings(ints(3, 16, symmetric=False), "pack-quantized")),
    "W3A16, older words": (
        packed(3, 16, has_zeros=True, is_old=True),
        settings(ints(3, 16, symmetric=False), "pack-quantized"),
    ),
    "W4A16, order of activations": (
        packed(4, 16, has_zeros=True, order=True),
        settings(ints(4, 16, symmetric=False, actorder="group"), "pack-quantized"),
    ),
    "W8A16, packed": (packed(8, 0), settings(ints(8, 0), "pack-quantized")),
    "W8A8": (int8(0), settings(ints(8, 0), "int-quantized")),
    "W8A8, groups with zero points": (
        int8(16, has_zeros=True),
        settings(ints(8, 16, symmetric=False), "int-quantized"),
    ),
}


FORMAT = Format(MODELS, ("W4A16, groups with zero points", "W3A16", "W4A16, order of activations"))


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


DOWN = "model.layers.1.mlp.down_proj"
# The changes to the settings and to the tensors, and the words that the refusal must name.
SPOILED: dict[str, tuple[dict[str, Any], Callable[[Tensors], Any], str]] = {
    "no groups": ({"config_groups": {}}, lambda _: None, "config_groups"),
    "a list of groups": ({"config_groups": [1]}, lambda _: None, "config_groups"),
    "an unknown preset": ({"config_groups": {"W1A1": ["Linear"]}}, lambda _: None, "W1A1"),
    "an unknown format": ({"format": "marlin-24"}, lambda _: None, "marlin-24"),
    "an unknown setting": ({"rotated": True}, lambda _: None, "rotated"),
    "rotations": ({"transform_config": {"config_groups": {"R3": {}}}}, lambda _: None, "transform_config"),
    "sparse weights": ({"sparsity_config": {"format": "sparse-24"}}, lambda _: None, "sparsity_config"),
    "ignore is no list": ({"ignore": "lm_head"}, lambda _: None, "ignore"),
    "ignore of another model": ({"ignore": ["vision.proj"]}, lambda _: None, "vision.proj"),
    "what is ignored is quantized": ({"ignore": ["re:.*down_proj"]}, lambda _: None, "down_proj"),
    "no regular expression": ({"ignore": ["re:(" * 50]}, lambda _: None, "regular expression"),
    "no scale": ({}, lambda tensors: tensors.pop(f"{DOWN}.weight_scale"), f"{DOWN}.weight_scale"),
    "no zeros": ({}, lambda tensors: tensors.pop(f"{DOWN}.weight_zero_point"), "weight_zero_point"),
    "a scale that is not finite": (
        {},
        lambda tensors: tensors[f"{DOWN}.weight_scale"].fill_(float("nan")),
        f"{DOWN}.weight_scale",
    ),
    "another shape": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight_packed": torch.zeros(72, 16).int()}),
        f"{DOWN}.weight_packed",
    ),
    "another type": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight_packed": torch.zeros(72, 17)}),
        f"{DOWN}.weight_packed",
    ),
    "another shape inside": (
        {},
        lambda tensors: tensors[f"{DOWN}.weight_shape"].add_(1),
        f"{DOWN}.weight_shape",
    ),
    "a tensor of no use": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight_rotation": torch.ones(2)}),
        f"{DOWN}.weight_rotation",
    ),
    "a bias that the model has not": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.bias": torch.ones(72)}),
        f"{DOWN}.bias",
    ),
    **{
        f"weights.{key} is {value!r}": (
            settings({**ints(4, 32, symmetric=False), key: value}, "pack-quantized"),
            lambda _: None,
            key if key != "type" else "format",
        )
        for key, values in {
            "num_bits": (0, 9, "4", 4.5, True),
            "type": ("float", "complex", 7),
            "strategy": ("tensor_group", "attn_head", 3),
            "group_size": (0, -1, "32", 1.5, [32]),
            "actorder": ("sideways", 5),
            "secret": (1,),
        }.items()
        for value in values
    },
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason(
    name: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    changes, spoil, names = SPOILED[name]
    of = "W4A16, groups with zero points"
    check_refusal(model(of), {**MODELS[of][1], **changes}, spoil, names, tmp_path)


def test_a_bias_of_zeros_is_no_bias(model: Callable[[str], Quantized], tmp_path: Path) -> None:
    healthy = model("W4A16, groups")
    folder = Path(shutil.copytree(healthy.folder, tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, f"{DOWN}.bias": torch.zeros(72)}, folder / "model.safetensors")
    check_tokens(Quantized(folder, healthy.oracle))


def test_the_most_specific_target_decides(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    def pack(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        if name.endswith("layers.0.mlp.down_proj"):
            return int8(0)(name, weight)
        return packed(2 if "k_proj" in name else 4, 16)(name, weight)

    group = {"weights": ints(4, 16), "format": "pack-quantized"}
    groups = {
        "all": {**group, "targets": ["Linear"]},
        "keys": {**group, "weights": ints(2, 16), "targets": ["re:.*k_proj"]},
        "one": {
            "targets": ["model.layers.0.mlp.down_proj"],
            "weights": ints(8, 0),
            "format": "int-quantized",
        },
    }
    mixed = {**settings(ints(4, 16), "mixed-precision"), "config_groups": groups}
    check_tokens(quantize(healthy(saved_model), tmp_path / "model", pack, mixed))


def test_a_preset_has_its_targets(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    preset = {**settings({}, "pack-quantized"), "config_groups": {"W4A16_ASYM": ["Linear"]}}
    check_tokens(quantize(healthy(saved_model), tmp_path / "model", packed(4, 128, has_zeros=True), preset))


def test_the_log_says_what_was_understood(
    model: Callable[[str], Quantized], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    make_engine(model("W4A16, groups").folder)
    line = next(message for message in caplog.messages if "matrices take" in message)
    assert line.startswith("compressed-tensors pack-quantized: 14 matrices take ")
    assert line.endswith("in 16 bits: lm_head")


def test_codes_stay_in_the_file(model: Callable[[str], Quantized]) -> None:
    folder = model("W4A16, groups").folder
    decoder: Any = make_engine(folder).model
    for layer in decoder.layers:
        for projection in (layer.attention.qkv, layer.attention.output, layer.feed_forward.up):
            assert all(is_in_file(matrix.codes, folder) for matrix in projection.matrices)
            assert not hasattr(projection, "weight")
