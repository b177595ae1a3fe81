"""Baichuan's and XVERSE's config.json, and heads whose rows have length 1: rounded, quantized, adapted."""

import json
from pathlib import Path
from typing import Any

import baichuan_folder
import pytest
import torch
import torch.nn.functional as F
from driver import make_engine
from family_models import CASES
from penstock_server.architectures.registry import load_spec
from penstock_server.base.errors import AdapterRefused, StartError
from quantized_checks import check_ranks, check_tokens
from quantized_models import Quantized, Tensors, is_linear, quantize
from safetensors.torch import load_file
from test_quantization_at_load import int8
from test_quantization_float8 import packed, settings
from tiny_model import TinyModel
from tiny_model import save as save_tiny

# Heads that two and three shards can share.
_HEADS = {"num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 6, "num_hidden_layers": 2}
_SECOND = {**_HEADS, "vocab_size": 125_696}
# The published settings, without those that both kinds have in common.
_BAICHUAN_13B = {
    "model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "num_hidden_layers": 40,
    "intermediate_size": 13696, "hidden_act": "silu", "rms_norm_eps": 1e-6, "model_max_length": 4096,
    "tie_word_embeddings": False, "vocab_size": 64_000, "torch_dtype": "bfloat16",
}  # fmt: skip
_BAICHUAN2_7B = {
    **_BAICHUAN_13B, "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 4096,
    "vocab_size": 125_696,
}  # fmt: skip


def spec_of(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return load_spec(folder)


def test_a_model_rotates_where_its_config_has_position_embeddings(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, _BAICHUAN2_7B)
    assert ([rope.theta for rope in spec.ropes], spec.slopes, spec.max_sequence_len) == ([1e4], None, 4096)
    assert (spec.num_kv_heads, spec.head_dim, spec.tied_embeddings) == (32, 128, False)


def test_a_model_has_slopes_where_its_config_has_a_length_only(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {**_BAICHUAN_13B, "model_max_length": 8192})
    assert (spec.ropes, {layer.rope for layer in spec.layers}) == ((), {None})
    assert (spec.max_sequence_len, spec.num_kv_heads, spec.head_dim) == (8192, 40, 128)
    assert spec.slopes[:2] == (2**-0.25, 2**-0.5)
    assert spec.slopes[31:34] == (2**-8, 2**-0.125, 2**-0.375)


@pytest.mark.parametrize("config", [_BAICHUAN_13B, _BAICHUAN2_7B])
@pytest.mark.parametrize(("vocab_size", "is_unit"), [(64_000, False), (125_695, False), (125_696, True)])
def test_the_vocabulary_says_what_the_head_is(
    config: dict[str, Any], vocab_size: int, is_unit: bool, tmp_path: Path
) -> None:
    assert spec_of(tmp_path, {**config, "vocab_size": vocab_size}).unit_head is is_unit


def test_a_head_that_is_no_matrix_of_its_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="tie_word_embeddings is True; expected False"):
        spec_of(tmp_path, {**_BAICHUAN2_7B, "tie_word_embeddings": True})


def test_xverse_with_experts_is_refused(tmp_path: Path) -> None:
    config = {**_BAICHUAN2_7B, "model_type": "xverse"}
    assert spec_of(tmp_path, config).num_heads == 32
    with pytest.raises(StartError, match="num_experts is 64; expected None"):
        spec_of(tmp_path, {**config, "num_experts": 64})


def made(folder: Path, options: dict[str, Any]) -> tuple[Any, Any]:
    """A Baichuan's folder; the Llama of its weights, and what computes it."""
    model = save_tiny(folder, TinyModel("llama", options))
    return model, baichuan_folder.convert(folder, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_a_head_are_rounded_once(tmp_path: Path, dtype: torch.dtype) -> None:
    made(tmp_path, {key: value for key, value in CASES["baichuan2"].items() if key != "family"})
    stored = load_file(tmp_path / "model.safetensors")["lm_head.weight"]
    head: Any = make_engine(tmp_path, dtype=str(dtype).removeprefix("torch.")).model
    assert head.lm_head.weight.dtype == dtype
    assert torch.equal(head.lm_head.weight, F.normalize(stored).to(dtype))


def test_projections_in_one_tensor_are_quantized_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, oracle = made(tmp_path, _SECOND)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_linear(name):
                parameter.copy_(torch.stack([int8(row) for row in parameter]))
    check_tokens(Quantized(tmp_path, oracle), quantize="int8")
    check_ranks(Quantized(tmp_path, oracle), 2, monkeypatch, quantize="int8")


def rows_or_one(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """A scale for each row, but one for the many of a head."""
    return (packed(0, 0, shape=()) if "lm_head" in name else packed(1, 0))(name, weight)


def test_a_quantized_head_becomes_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "model"
    save_tiny(whole, TinyModel("llama", _SECOND))
    of = quantize(whole, folder, rows_or_one, settings(), lambda name: is_linear(name) or "lm_head" in name)
    model = Quantized(folder, baichuan_folder.convert(folder, of.oracle))
    check_tokens(model)
    check_ranks(model, 3, monkeypatch)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_an_adapter_of_a_head_of_length_one_is_refused(tmp_path: Path) -> None:
    peft_adapters = pytest.importorskip("peft_adapters")
    model, _oracle = made(tmp_path / "model", _SECOND)
    peft_adapters.unmerged(tmp_path / "adapter", model, target_modules=["lm_head", "o_proj"], r=2)
    adapters = make_engine(tmp_path / "model").slots.adapters
    with pytest.raises(AdapterRefused, match="lm_head"):
        adapters.load(tmp_path / "adapter", "", "test")
