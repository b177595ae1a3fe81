"""Checkpoints of floats of 8 bits, of all tools, give the tokens of what their numbers mean, on any number of ranks."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from family_models import CASES
from quantized_checks import check_ranks, check_refusal, check_tokens
from quantized_formats import Format, Made
from quantized_models import Packer, Quantized, Tensors, healthy, quantize
from safetensors.torch import load_file, save_file

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0


def packed(
    rows: int,
    columns: int,
    name: str = "weight_scale",
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    **more: torch.Tensor,
) -> Packer:
    """A scale for every block of so many rows and columns; 0 means all."""

    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        row = torch.arange(len(weight)) // (rows or len(weight))
        column = torch.arange(weight.shape[1]) // (columns or weight.shape[1])
        scales = torch.zeros(int(row.max()) + 1, int(column.max()) + 1)
        for line, place in itertools.product(range(scales.shape[0]), range(scales.shape[1])):
            scales[line, place] = weight[row == line][:, column == place].abs().max() / LARGEST
        if dtype == torch.float8_e8m0fnu:
            scales = scales.log2().ceil().exp2()
        scales = scales.to(dtype).float()
        codes = (weight / scales[row][:, column]).clamp(-LARGEST, LARGEST).to(FLOAT8)
        stored = scales if shape is None else scales.view(shape)
        tensors = {"weight": codes, name: stored.to(dtype), **more}
        return tensors, codes.float() * scales[row][:, column]

    return pack


def settings(**more: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", **more}


def compressed(strategy: str, **more: Any) -> dict[str, Any]:
    weights = {
        "num_bits": 8,
        "type": "float",
        "symmetric": True,
        "strategy": strategy,
        "dynamic": False,
        **more,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8, "dynamic": True}}
    groups = {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", **groups}


ONE = torch.ones(1)
BLOCK = settings(weight_block_size=[16, 32])
MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "blocks": (packed(16, 32, "weight_scale_inv"), BLOCK),
    "blocks with powers of two": (
        packed(16, 32, "weight_scale_inv", dtype=torch.float8_e8m0fnu),
        {**BLOCK, "scale_fmt": "ue8m0"},
    ),
    "one scale, static activations": (
        packed(0, 0, shape=(), input_scale=ONE[0]),
        settings(activation_scheme="static", ignored_layers=["lm_head"]),
    ),
    "one scale, as Mistral writes it": (
        packed(0, 0, "weight_scale_inv", shape=(), activation_scale=ONE[0]),
        settings(activation_scheme="static", weight_block_size=None),
    ),
    "rows of fbgemm": (
        packed(1, 0),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": ["lm_head"]},
    ),
    "compressed-tensors, one scale": (packed(0, 0, shape=(1,), input_scale=ONE), compressed("tensor")),
    "compressed-tensors, rows": (packed(1, 0, dtype=torch.bfloat16), compressed("channel")),
    "compressed-tensors, blocks": (packed(32, 16), compressed("block", block_structure="32x16")),
}


FORMAT = Format(MODELS, ("blocks", "rows of fbgemm"))


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


def test_rows_that_change_places_keep_their_scales(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    """Cohere rotates neighbouring pairs: the rows of queries and keys are reordered, across blocks."""
    of = healthy(saved_model, family="cohere", tie_word_embeddings=True)
    check_tokens(quantize(of, tmp_path / "model", *MODELS["blocks"]))


def test_projections_in_one_tensor_are_divided_by_rows(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = healthy(saved_model, family="phi3")
    check_ranks(quantize(of, tmp_path / "model", *MODELS["blocks"]), 2, monkeypatch)


def test_a_head_can_be_quantized(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = quantize(
        healthy(saved_model), tmp_path / "model", packed(1, 0), settings(), lambda name: "lm_head" in name
    )
    check_tokens(model)
    check_ranks(model, 3, monkeypatch)


def test_a_part_of_a_fused_projection_may_stay_in_16_bits(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    skipped = settings(modules_to_not_convert=["k_proj", "model.layers.1.mlp.up_proj"])

    def chosen(name: str) -> bool:
        return "_proj" in name and "k_proj" not in name and "1.mlp.up_proj" not in name

    check_tokens(quantize(healthy(saved_model), tmp_path / "model", packed(0, 0, shape=()), skipped, chosen))


NO_BLOCKS: tuple[Any, ...] = (0, [], [16], [16, 0], [16, -1], [1.5, 1], ["a", 1], {}, [16, True], [16] * 3)
DOWN = "model.layers.1.mlp.down_proj"
# The changes to the settings and to the tensors, and the words that the refusal must name.
SPOILED: dict[str, tuple[dict[str, Any], Callable[[Tensors], Any], str]] = {
    "another type of float": ({"fmt": "e5m2"}, lambda _: None, "fmt"),
    "an unknown setting": ({"expert_dtype": "fp4"}, lambda _: None, "expert_dtype"),
    "skipped modules of another model": (
        {"modules_to_not_convert": ["vision"]},
        lambda _: None,
        "modules_to_not_convert",
    ),
    "what is skipped is quantized": (
        {"modules_to_not_convert": ["down_proj"]},
        lambda _: None,
        "modules_to_not_convert",
    ),
    "no list": ({"ignored_layers": "lm_head"}, lambda _: None, "ignored_layers"),
    "no scale": ({}, lambda tensors: tensors.pop(f"{DOWN}.weight_scale_inv"), f"{DOWN}.weight_scale"),
    "a scale of another size": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight_scale_inv": torch.ones(5, 4)}),
        f"{DOWN}.weight_scale_inv",
    ),
    "a scale that is not finite": (
        {},
        lambda tensors: tensors[f"{DOWN}.weight_scale_inv"].fill_(float("inf")),
        f"{DOWN}.weight_scale_inv",
    ),
    "a code that is no number": (
        {},
        lambda tensors: tensors[f"{DOWN}.weight"].view(torch.uint8)[71].fill_(0xFF),
        f"{DOWN}.weight",
    ),
    "no weight": ({}, lambda tensors: tensors.pop(f"{DOWN}.weight"), f"{DOWN}.weight"),
    "integers": ({}, lambda tensors: tensors.update({f"{DOWN}.weight": torch.ones(72, 132).char()}), "I8"),
    "two scales": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight_scale": torch.ones(5, 5)}),
        f"{DOWN}.weight_scale ",
    ),
    "a scale beside a weight of 16 bits": (
        {},
        lambda tensors: tensors.update({f"{DOWN}.weight": torch.ones(72, 132)}),
        f"{DOWN}.weight_scale_inv",
    ),
    **{
        f"blocks of {value!r}": ({"weight_block_size": value}, lambda _: None, "weight_block_size")
        for value in NO_BLOCKS
    },
    "blocks of another size": ({"weight_block_size": [32, 32]}, lambda _: None, "weight_scale_inv"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason(
    name: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    changes, spoil, names = SPOILED[name]
    check_refusal(model("blocks"), {**BLOCK, **changes}, spoil, names, tmp_path)


def test_experts_may_share_a_tensor(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The experts are in the layout of transformers 5."""
    experts = {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    }
    model = quantize(
        healthy(saved_model, family="qwen3_moe", **experts), tmp_path / "model", *MODELS["blocks"]
    )
    tensors = load_file(model.folder / "model.safetensors")
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        for end, new in (("weight", ""), ("weight_scale_inv", "_scale_inv")):
            parts = {
                part: torch.stack([tensors.pop(f"{prefix}{number}.{part}_proj.{end}") for number in range(4)])
                for part in ("gate", "up", "down")
            }
            tensors[f"{prefix}gate_up_proj{new}"] = torch.cat((parts["gate"], parts["up"]), dim=1)
            tensors[f"{prefix}down_proj{new}"] = parts["down"]
    save_file(tensors, model.folder / "model.safetensors")
    check_ranks(model, 2, monkeypatch)


def test_what_a_layer_needs_as_numbers_is_read_as_numbers(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeepSeek attends to latents by both halves of a matrix, which is quantized like the others."""
    of = saved_model(**CASES["deepseek_v3"]).folder
    model = quantize(of, tmp_path / "model", *MODELS["blocks"])
    assert any("kv_b_proj.weight_scale_inv" in name for name in load_file(model.folder / "model.safetensors"))
    check_tokens(model)
    check_ranks(model, 2, monkeypatch)
