"""Every quantized format gives the tokens of what its numbers mean, also on shards that begin anywhere."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantized_checks import check_ranks, check_tokens
from quantized_formats import Made
from quantized_models import healthy, quantize
from test_quantization_auto_round import FORMAT as AUTO_ROUND
from test_quantization_awq_gptq import FORMAT as WORDS
from test_quantization_bitsandbytes import FORMAT as BITSANDBYTES
from test_quantization_compressed_tensors import FORMAT as COMPRESSED
from test_quantization_float8 import FORMAT as FLOAT8
from test_quantization_fp4 import FORMAT as FP4
from test_quantization_torchao import FORMAT as TORCHAO

FORMATS = {
    "words": WORDS,
    "auto-round": AUTO_ROUND,
    "bitsandbytes": BITSANDBYTES,
    "compressed-tensors": COMPRESSED,
    "float8": FLOAT8,
    "fp4": FP4,
    "torchao": TORCHAO,
}
# The divided models are also tried with experts; but the rules of auto-round name the modules of a Llama.
WITH_EXPERTS = {**{of: FORMATS[of].divided for of in FORMATS}, "auto-round": ("words of GPTQ",)}


@pytest.mark.parametrize(("of", "name"), [(of, name) for of in FORMATS for name in FORMATS[of].models])
def test_tokens_are_those_of_what_the_numbers_mean(of: str, name: str, made: Made) -> None:
    check_tokens(made(FORMATS[of], name))


# Inside a group, a block or a byte.
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(("of", "name"), [(of, name) for of in FORMATS for name in FORMATS[of].divided])
def test_shards_may_begin_anywhere(
    of: str, name: str, size: int, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_ranks(made(FORMATS[of], name), size, monkeypatch)


@pytest.mark.parametrize(("of", "name"), [(of, name) for of in FORMATS for name in WITH_EXPERTS[of]])
def test_experts_are_quantized_too(
    of: str, name: str, saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each expert has modules of its own. Four ranks divide their matrices inside a group, a block or a byte."""
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True}
    model = healthy(saved_model, family="qwen3_moe", **{**FORMATS[of].sizes, **sizes})
    made = quantize(model, tmp_path / "model", *FORMATS[of].models[name])
    FORMATS[of].complete(name, made.folder)
    check_tokens(made)
    check_ranks(made, 4, monkeypatch)
    # Whole experts: one or two on each rank.
    check_ranks(made, 4, monkeypatch, expert_parallel=True)
