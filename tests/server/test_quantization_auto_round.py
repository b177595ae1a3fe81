"""Checkpoints of AutoRound give the tokens of what their numbers mean: words of GPTQ and AWQ, with exceptions."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checks import check_refusal
from quantized_formats import Format, Made
from quantized_models import Packer, Quantized, Tensors
from test_quantization_awq_gptq import awq, gptq


def settings(packing: str, **more: Any) -> dict[str, Any]:
    """The settings as the tool writes them."""
    of_tool = {
        "autoround_version": "0.9.1",
        "iters": 200,
        "nsamples": 128,
        "seqlen": 2048,
        "low_gpu_mem_usage": True,
    }
    numbers = {
        "bits": 4,
        "group_size": 16,
        "sym": True,
        "data_type": "int",
        "block_name_to_quantize": "model.layers",
    }
    return {"quant_method": "auto-round", "packing_format": packing, **numbers, **of_tool, **more}


def mixed(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    packer = gptq(8, 32, has_zeros=True) if "down_proj" in name else gptq(4, 16, has_zeros=True)
    return packer(name, weight)


DOWN = {"bits": 8, "group_size": 32}
MODELS: dict[str, tuple[Packer, dict[str, Any]]] = {
    "words of GPTQ": (gptq(4, 16, order="none"), settings("auto_round:auto_gptq")),
    "its other name, 2 bits": (gptq(2, 16, has_zeros=True), settings("auto_round:gptq", bits=2, sym=False)),
    "zeros as they are": (gptq(4, 16, has_zeros=True, is_v1=False), settings("auto_round", sym=False)),
    "of gptqmodel": (gptq(3, 32, is_v1=False), settings("auto_round:gptqmodel", bits=3, group_size=32)),
    "words of AWQ": (awq(16), settings("auto_round:auto_awq", sym=False)),
    "some modules of 8 bits": (
        mixed,
        settings(
            "auto_round:auto_gptq",
            sym=False,
            extra_config={
                "model.layers.0.mlp.down_proj": DOWN,
                r".*1\.mlp\.down_proj.*": DOWN,
                "lm_head": {"bits": 16},
            },
        ),
    ),
}


FORMAT = Format(MODELS, ("some modules of 8 bits",))


@pytest.fixture(scope="module")
def model(made: Made) -> Callable[[str], Quantized]:
    return partial(made, FORMAT)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"packing_format": "auto_round:fp8_static"}, "packing_format is 'auto_round:fp8_static'"),
        ({"data_type": "nv_fp"}, "data_type is 'nv_fp'"),
        ({"bits": 9}, "bits is 9"),
        ({"bits": None}, "bits is missing"),
        ({"group_size": 24}, "has shape"),
        ({"super_bits": 6}, "super_bits is 6"),
        (
            {"extra_config": {"model.layers.7.mlp.up_proj": {"bits": 8}}},
            "extra_config is 'model.layers.7.mlp.up_proj'",
        ),
        (
            {"extra_config": {"model.layers.0.mlp.up_proj": {"bits": 16}}},
            "model.layers.0.mlp.up_proj.weight in 16 bits",
        ),
        ({"extra_config": {"[": {"bits": 8}}}, "a name or a regular expression"),
        ({"extra_config": {"lm_head": {"rotation": 1}}}, "extra_config: rotation is 1"),
        ({"extra_config": [1]}, "an object of settings for every module"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], names: str, model: Callable[[str], Quantized], tmp_path: Path
) -> None:
    asked = {**settings("auto_round:auto_gptq"), **changes}
    check_refusal(model("words of GPTQ"), asked, lambda tensors: None, names, tmp_path)
