"""Invalid folders of adapters: each refusal names the file and the tensor or key, and leaves nothing behind."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapter_folder
import pytest
import torch
from adapter_folder import PREFIX, tensors, write
from driver import make_engine
from penstock_server.base.errors import AdapterRefused
from penstock_server.engine.adapters import Adapters
from penstock_server.files.adapter.config import Targets, parse_config

Q = f"{PREFIX}.1.self_attn.q_proj"
A, B = f"{Q}.lora_A.weight", f"{Q}.lora_B.weight"
# The embedding of 301 tokens.
E = "base_model.model.model.embed_tokens"
EMBEDDING_A, ROWS = f"{E}.lora_embedding_A", f"{E}.token_adapter.trainable_tokens_delta"


@pytest.fixture(scope="module")
def adapters(saved_model: Callable[..., Any]) -> Adapters:
    return make_engine(saved_model().folder).slots.adapters


def refusal(adapters: Adapters, folder: Path) -> str:
    with pytest.raises(AdapterRefused) as refused:
        adapters.load(folder, "", "test")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def _without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in tensors().items() if key != name}


def _with(name: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**tensors(), name: value}


BAD_TENSORS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "no A": (_without(A), f"{A} is missing"),
    "no B": (_without(B), f"{B} is missing"),
    "neither": ({k: v for k, v in tensors().items() if Q not in k}, f"{A} is missing"),
    "another base": (_with(A, torch.ones(4, 73)), f"{A} has shape [4, 73], but the model needs [4, 72]"),
    "ranks that differ": (_with(A, torch.ones(3, 72)), f"{B} has shape [144, 4]"),
    "rank 0": ({**tensors(), A: torch.ones(0, 72), B: torch.ones(144, 0)}, f"{A} has rank 0"),
    "a rank too large": ({**tensors(), A: torch.ones(300, 72), B: torch.ones(144, 300)}, f"{A} has rank 300"),
    "a vector": (_with(A, torch.ones(72)), f"{A} has shape [72]"),
    "NaN": (_with(B, torch.full((144, 4), float("nan"))), f"{B} holds numbers that are not finite"),
    "another layer": (_with(A.replace(".1.", ".7."), torch.ones(4, 72)), "the model has no such layer"),
    "no module": (_with("base_model.model.x.lora_A.weight", torch.ones(4, 72)), "no such layer"),
    "a magnitude": (_with(f"{Q}.lora_magnitude_vector", torch.ones(144)), "is there, but use_dora is not true"),
    "a bias": (_with(f"{Q}.base_layer.bias", torch.ones(144)), f"{Q}.base_layer.bias is of a kind"),
    "no LoRA": (_with(f"{Q}.oft_R.weight", torch.ones(4, 72)), f"{Q}.oft_R.weight is of a kind"),
    "another prefix": (_with("q_proj.lora_A.weight", torch.ones(4, 72)), "tensor q_proj.lora_A.weight does not begin"),
    "half of an embedding": (_with(EMBEDDING_A, torch.ones(4, 301)), f"{E}.lora_embedding_B is missing"),
    "an embedding of rank 0": (
        {**tensors(), EMBEDDING_A: torch.ones(0, 301), f"{E}.lora_embedding_B": torch.ones(72, 0)},
        f"{EMBEDDING_A} has rank 0",
    ),
    "a larger vocabulary": (
        _with(f"{E}.weight", torch.ones(302, 72)),
        f"{E}.weight has shape [302, 72]: 302 tokens, 1 more than the 301 of the model",
    ),
    "a larger copy": (
        _with(f"{E}.base_layer.weight", torch.ones(320, 72)),
        f"{E}.base_layer.weight has shape [320, 72]: 320 tokens, 19 more than the 301 of the model",
    ),
    "a smaller vocabulary": (
        _with("base_model.model.lm_head.weight", torch.ones(300, 72)),
        "lm_head.weight has shape [300, 72]: 300 tokens, 1 fewer than the 301 of the model",
    ),
    "a larger vocabulary of low rank": (
        {**tensors(), EMBEDDING_A: torch.ones(4, 303), f"{E}.lora_embedding_B": torch.ones(72, 4)},
        f"{EMBEDDING_A} has shape [4, 303]: 303 tokens, 2 more than the 301 of the model",
    ),
    "a larger head of low rank": (
        {
            **tensors(),
            "base_model.model.lm_head.lora_A.weight": torch.ones(4, 72),
            "base_model.model.lm_head.lora_B.weight": torch.ones(305, 4),
        },
        "lm_head.lora_B.weight has shape [305, 4]: 305 tokens, 4 more than the 301 of the model",
    ),
    "embeddings of another size": (_with(f"{E}.weight", torch.ones(301, 73)), f"{E}.weight has shape [301, 73], but"),
    "embeddings of another base": (
        _with(f"{E}.base_layer.weight", torch.ones(301, 72)),
        f"{E}.base_layer.weight: it differs from the base model's",
    ),
    "rows of no tokens": (_with(ROWS, torch.ones(2, 72)), f"{ROWS} has shape [2, 72], but the model needs [0, 72]"),
    "rows of a linear layer": (
        _with(f"{Q}.token_adapter.trainable_tokens_delta", torch.ones(2, 72)),
        "trainable_tokens_delta is of a kind that is not supported",
    ),
    "a linear layer of its own": (_with(f"{Q}.weight", torch.ones(144, 72)), f"{Q}.weight is of a kind"),
    "whole numbers": (_with(A, torch.ones(4, 72, dtype=torch.int64)), f"{A} is I64"),
}  # fmt: skip
BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "IA3": ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
    "a classifier": ({"task_type": "SEQ_CLS"}, "task_type is 'SEQ_CLS'"),
    "PiSSA": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
    "LoftQ": ({"init_lora_weights": "loftq"}, "init_lora_weights is 'loftq'"),
    "unknown": ({"new_way": 3}, "new_way is 3: it is not supported"),
    "QALoRA": ({"use_qalora": True}, "use_qalora is True"),
    "replicated layers": ({"layer_replication": [[0, 2]]}, "layer_replication is [[0, 2]]"),
    "saved modules": ({"modules_to_save": ["score"]}, "modules_to_save is ['score']"),
    "saved linear layers": ({"modules_to_save": ["o_proj"]}, "self_attn.o_proj.weight is missing"),
    "saved and activated": (
        {"modules_to_save": ["lm_head"], "alora_invocation_tokens": [1]},
        "modules_to_save is ['lm_head']: it is not supported with alora_invocation_tokens",
    ),
    "tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices: there is no tensor of model.embed_tokens"),
    "tokens of a module": ({"trainable_token_indices": {"lm_head": [3]}}, "there is no tensor of lm_head"),
    "no tokens": ({"trainable_token_indices": [-1]}, "trainable_token_indices is [-1]"),
    "embeddings": ({"target_modules": ["q_proj", "down_proj", "embed_tokens"]}, f"{E}.lora_embedding_A is missing"),
    "an expression": ({"target_modules": "("}, "target_modules is '('"),
    "no number": ({"lora_alpha": "8"}, "lora_alpha is '8'"),
    "a pattern": ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern"),
    "no flag": ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
    "no magnitudes": ({"use_dora": True}, "lora_magnitude_vector is missing"),
    "both": ({"use_dora": True, "lora_bias": True}, "lora_bias is True"),
    "biases": ({"bias": "some"}, "bias is 'some'"),
    "an invocation": ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens is [-1]"),
    "no list": ({"target_modules": [3]}, "target_modules is [3]"),
    "layers": ({"layers_to_transform": "1"}, "layers_to_transform is '1'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(adapters: Adapters, tmp_path: Path, name: str) -> None:
    weights, message = BAD_TENSORS[name]
    assert message in refusal(adapters, write(tmp_path, weights))


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_keys_that_change_numbers_are_understood_or_refused(
    adapters: Adapters, tmp_path: Path, name: str
) -> None:
    config, message = BAD_CONFIGS[name]
    found = refusal(adapters, write(tmp_path, **config))
    assert f"{tmp_path}/adapter_" in found
    assert message in found


def test_files_that_cannot_be_read_are_refused(adapters: Adapters, tmp_path: Path) -> None:
    assert "there is no such folder" in refusal(adapters, tmp_path / "nowhere")
    folder = write(tmp_path / "adapter")
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "truncated inside tensor" in refusal(adapters, folder)
    weights.write_bytes(b"")
    assert str(weights) in refusal(adapters, folder)
    weights.rename(folder / "adapter_model.bin")
    assert "it holds pickled weights" in refusal(adapters, folder)
    (folder / "adapter_model.bin").unlink()
    assert "there is no such file" in refusal(adapters, folder)
    weights.write_bytes(whole)
    for text in ("{", "[]", "\xff"):
        config.write_bytes(text.encode("latin-1"))
        assert str(config) in refusal(adapters, folder)
    config.unlink()
    assert f"{config}: No such file" in refusal(adapters, folder)


def test_a_pipe_or_a_device_is_refused_and_waited_for_by_nobody(adapters: Adapters, tmp_path: Path) -> None:
    folder = write(tmp_path / "adapter")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        file, kept = folder / name, tmp_path / name
        file.rename(kept)
        os.mkfifo(file)
        assert str(file) in refusal(adapters, folder)
        file.unlink()
        file.symlink_to("/dev/zero")
        assert str(file) in refusal(adapters, folder)
        file.unlink()
        kept.rename(file)
    adapters.load(folder, "", "test")


def test_a_huge_file_is_refused_before_it_is_read(
    adapters: Adapters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    monkeypatch.setattr("penstock_server.files.adapter.folder._MAX_TENSOR_BYTES", 1000)
    assert "more than the 1000 that are allowed" in refusal(adapters, folder)
    monkeypatch.setattr("penstock_server.files.adapter.folder._MAX_CONFIG_BYTES", 10)
    assert "more than the 10 that are allowed" in refusal(adapters, folder)


def test_a_folder_that_has_changed_is_refused(adapters: Adapters, tmp_path: Path) -> None:
    folder = write(tmp_path)
    first = adapters.load(folder, "", "test")
    assert adapters.load(folder, first.adapter_id, "test") is first
    write(tmp_path, tensors(seed=1))
    with pytest.raises(AdapterRefused, match="its content has changed"):
        adapters.load(folder, first.adapter_id, "test")
    second = adapters.load(folder, "", "test")
    assert second.adapter_id != first.adapter_id
    write(tmp_path, tensors(seed=1), lora_alpha=9)
    assert adapters.load(folder, "", "test").adapter_id not in (first.adapter_id, second.adapter_id)
    copied = write(tmp_path / "copy")
    assert adapters.load(copied, first.adapter_id, "test") is first


def test_what_an_adapter_takes_is_told(adapters: Adapters, tmp_path: Path) -> None:
    found = adapters.load(write(tmp_path, tensors(rank=7)), "", "test")
    assert found.max_rank == 7
    # Both matrices in float32, and a number for each output.
    per_layer = 4 * (7 * 72 + (144 + 2 * 72) * 8 + 7 * 132 + 72 * 8 - (144 + 2 * 72) - 72)
    assert found.num_bytes == 3 * (per_layer + 4 * (144 + 2 * 72 + 72))


@pytest.mark.parametrize("key", ["layers_pattern", "target_modules", "exclude_modules", "target_parameters"])
def test_an_expression_that_is_none_is_refused_by_its_key(
    adapters: Adapters, tmp_path: Path, key: str
) -> None:
    of = ["["] if key == "layers_pattern" else "["
    folder = write(tmp_path, tensors(), layers_to_transform=[0], **{key: of})
    assert f"{key} is {of!r}: no valid expression" in refusal(adapters, folder)


def test_names_of_saved_modules_are_no_expressions(adapters: Adapters, tmp_path: Path) -> None:
    folder = write(tmp_path, tensors(), modules_to_save=["a[2J"])
    assert "there is no tensor of a[2J" in refusal(adapters, folder)


def test_what_does_not_go_together_is_refused(adapters: Adapters, tmp_path: Path) -> None:
    rows = {f"{E}.weight": torch.ones(301, 72), ROWS: torch.ones(2, 72)}
    folder = write(tmp_path / "a", {**tensors(), **rows}, trainable_token_indices=[1, 2])
    assert f"{E}.weight: it is not supported beside" in refusal(adapters, folder)
    norm = {f"{PREFIX}.{layer}.input_layernorm.weight": torch.ones(72) for layer in range(2)}
    folder = write(tmp_path / "b", {**tensors(), **norm}, modules_to_save=["input_layernorm"])
    assert "layers.2.input_layernorm.weight is missing" in refusal(adapters, folder)
    norm[f"{PREFIX}.2.input_layernorm.weight"] = torch.ones(73)
    folder = write(tmp_path / "b", {**tensors(), **norm}, modules_to_save=["input_layernorm"])
    assert "layers.2.input_layernorm.weight has shape [73]" in refusal(adapters, folder)
    norm = {f"{PREFIX}.{layer}.self_attn.q_norm.weight": torch.ones(8) for layer in range(3)}
    folder = write(tmp_path / "b", {**tensors(), **norm}, modules_to_save=["q_norm"])
    assert "layers.0.self_attn.q_norm.weight: the model has no such layer" in refusal(adapters, folder)
    norm = {f"{PREFIX}.1.input_layernorm.lora_{end}.weight": torch.ones(4, 72) for end in "AB"}
    assert "of a kind that is not supported" in refusal(
        adapters, write(tmp_path / "b", {**tensors(), **norm})
    )
    for tokens in ([1, 301], [1, 1]):
        folder = write(tmp_path / "c", _with(ROWS, torch.ones(2, 72)), trainable_token_indices=tokens)
        assert "expected different tokens below 301" in refusal(adapters, folder)


def test_a_model_whose_layers_carry_none_says_so(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    engine = make_engine(saved_model().folder, max_adapters=0)
    assert "adapters" not in engine.description.abilities
    assert engine.description.max_adapters == 0
    assert "cannot carry adapters" in refusal(engine.slots.adapters, write(tmp_path))


def test_biases_have_a_layer_that_has_one(adapters: Adapters, tmp_path: Path) -> None:
    name = f"{Q}.base_layer.bias"
    folder = write(tmp_path, _with(name, torch.ones(144)), bias="lora_only")
    assert f"{name}: the model has no bias there" in refusal(adapters, folder)
    name = f"{PREFIX}.1.input_layernorm.bias"
    folder = write(tmp_path, _with(name, torch.ones(72)), bias="all")
    assert f"{name}: the model has no bias there" in refusal(adapters, folder)


def test_magnitudes_need_the_weights_of_the_base_model(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    weights = {**tensors()}
    for name in tensors():
        if name.endswith("lora_B.weight"):
            weights[name.replace("lora_B.weight", "lora_magnitude_vector")] = torch.ones(len(weights[name]))
    folder = write(tmp_path, weights, use_dora=True)
    engine = make_engine(saved_model().folder, load_format="dummy")
    assert "they are noise here" in refusal(engine.slots.adapters, folder)
    make_engine(saved_model().folder).slots.adapters.load(folder, "", "test")


def test_targets_follow_the_rules_of_peft() -> None:
    layer = "model.layers.11.self_attn.q_proj"
    assert Targets(("q_proj",)).has(layer)
    assert Targets(("self_attn.q_proj",)).has(layer)
    assert not Targets(("proj",)).has(layer)
    assert Targets(r".*\.q_proj").has(layer)
    assert not Targets("q_proj").has(layer), "an expression has the whole name"
    assert Targets("all-linear").has(layer)
    assert not Targets("all-linear").has("lm_head", is_head=True)
    assert not Targets(("q_proj",), excluded=("self_attn.q_proj",)).has(layer)
    assert not Targets("all-linear", excluded=r".*\.11\..*").has(layer)
    assert Targets(("q_proj",), layers=(3, 11)).has(layer)
    assert not Targets(("q_proj",), layers=(1,)).has(layer)
    assert not Targets(("q_proj",), layers=(11,), layers_patterns=("h",)).has(layer)
    assert not Targets(("q_proj",), saved=("self_attn",)).has(layer)


def test_scales_follow_the_patterns(tmp_path: Path) -> None:
    config = {**adapter_folder.CONFIG, "alpha_pattern": {"q_proj": 2, r"layers\.1\..*": 6}}
    parsed = parse_config(config, tmp_path)
    assert parsed.scale("model.layers.1.self_attn.q_proj", 4) == 0.5
    assert parsed.scale("model.layers.1.mlp.down_proj", 4) == 1.5
    assert parsed.scale("model.layers.2.mlp.down_proj", 4) == 2.0
    assert parse_config({**config, "use_rslora": True}, tmp_path).scale("model.x", 4) == 4.0
    assert json.dumps(config), "as it is written"
