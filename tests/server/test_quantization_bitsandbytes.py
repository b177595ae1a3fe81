"""Checkpoints of bitsandbytes give the tokens of what their numbers mean, on any number of shards."""

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
from quantized_models import Packer, Quantized, Tensors, change_settings, healthy

NF4 = torch.tensor([
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
])  # fmt: skip
STATE = "weight.quant_state.bitsandbytes__nf4"


def nf4(is_nested: bool) -> Packer:
    """Blocks of 64 of the flat matrix, which go on in the next row: no row is a whole number of them."""

    def pack(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        flat = weight.flatten()
        block = torch.arange(len(flat)) // 64
        largest = torch.zeros(int(block[-1]) + 1).scatter_reduce(0, block, flat.abs(), "amax")
        state: dict[str, Any] = {
            "quant_type": "nf4",
            "blocksize": 64,
            "dtype": "float32",
            "shape": [*weight.shape],
        }
        nested: Tensors = {}
        if is_nested:
            offset, numbers = float(largest.mean()), torch.linspace(-1, 1, 256)
            group = torch.arange(len(largest)) // 256
            whole = torch.zeros(int(group[-1]) + 1).scatter_reduce(0, group, (largest - offset).abs(), "amax")
            codes = ((largest - offset) / whole[group]).unsqueeze(-1).sub(numbers).abs().argmin(-1)
            largest = numbers[codes] * whole[group] + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            nested = {"weight.nested_absmax": whole, "weight.nested_quant_map": numbers}
        places = (flat / largest[block]).unsqueeze(-1).sub(NF4).abs().argmin(-1).to(torch.uint8)
        stored = {
            "weight": (places[0::2] << 4 | places[1::2]).unsqueeze(1),
            "weight.absmax": codes.to(torch.uint8) if is_nested else largest,
            "weight.quant_map": NF4,
            STATE: torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
        }
        return {**stored, **nested}, (NF4[places.int()] * largest[block]).view_as(weight)

    return pack


def int8(_name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    largest = weight.abs().amax(1)
    codes = (weight / largest.unsqueeze(1) * 127).round().to(torch.int8)
    stored = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, codes * largest.unsqueeze(1) / 127


def settings(**more: Any) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "llm_int8_skip_modules": ["lm_head"],
        "llm_int8_threshold": 6.0,
        **more,
    }


FOUR = settings(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "nf4": (nf4(is_nested=False), FOUR),
    "nf4 with nested scales": (nf4(is_nested=True), FOUR),
    "int8": (int8, settings(load_in_8bit=True)),
}


FORMAT = Format(MODELS, ("nf4 with nested scales", "int8"))


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


DOWN = "model.layers.1.mlp.down_proj"


def _state(tensors: Tensors, text: bytes) -> None:
    tensors[f"{DOWN}.{STATE}"] = torch.tensor(list(text), dtype=torch.uint8)


# The model, what is changed in the settings, the tensors, and what the refusal names.
SPOILED: dict[str, tuple[str, dict[str, Any], Callable[[Tensors], Any], str]] = {
    "an unknown setting": ("nf4", {"bnb_8bit_blocks": 4}, lambda _: None, "bnb_8bit_blocks"),
    "no state": ("nf4", {}, lambda tensors: tensors.pop(f"{DOWN}.{STATE}"), DOWN),
    "no scales": ("nf4", {}, lambda tensors: tensors.pop(f"{DOWN}.weight.absmax"), f"{DOWN}.weight.absmax"),
    "a state of another matrix": (
        "nf4",
        {},
        lambda tensors: _state(tensors, b'{"blocksize": 64, "shape": [1, 2]}'),
        "[1, 2]",
    ),
    "blocks of nothing": (
        "nf4",
        {},
        lambda tensors: _state(tensors, b'{"blocksize": 0, "shape": [72, 132]}'),
        "blocks of",
    ),
    **{
        f"a state of {text!r}": ("nf4", {}, lambda tensors, text=text: _state(tensors, text), DOWN)  # type: ignore[misc]
        for text in (b"{", b"[]", b"3", b"{}", b"\xff", b"[" * 4000)
    },
    "another order": (
        "int8",
        {},
        lambda tensors: tensors[f"{DOWN}.weight_format"].fill_(1),
        f"{DOWN}.weight_format",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_does_not_fit_is_refused_with_its_reason(
    name: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    of, changes, spoil, names = SPOILED[name]
    check_refusal(model(of), {**MODELS[of][1], **changes}, spoil, names, tmp_path)


def test_weights_that_are_to_be_quantized_at_load_are_refused(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(healthy(saved_model), tmp_path / "model"))
    change_settings(folder, FOUR)
    assert "no matrix is quantized" in refusal(folder)
