"""The text part of models that also see is served, however their files name it; it is refused where it needs more."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import thread_ranks
import tiny_model
import torch
import whole_model
from driver import Driver, Execute, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.architectures.registry import load_spec
from penstock_server.architectures.text_part import _LEFT_OUT
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from quantized_checks import check_tokens
from quantized_models import change_settings, quantize
from safetensors.torch import load_file, save_file
from test_quantization_float8 import packed
from test_quantization_float8 import settings as settings_of_fp8
from transformers import CONFIG_MAPPING

_NUM_NEW = 4
_PROMPTS = [[7, 3, 250, 19, 64], list(range(10, 43))]


class Whole:
    """A folder of a model that also sees, and what transformers says of its prompts."""

    def __init__(self, folder: Path, whole: str, text: str, options: dict[str, Any]) -> None:
        self.folder = folder
        model = whole_model.save(folder, whole, text, options)
        # The whole of Llama 4 cannot be run without an image, in this version.
        alone = model.language_model if whole == "llama4" else model
        self.greedy = [oracle.greedy(alone, prompt, _NUM_NEW) for prompt in _PROMPTS]

    def rename(self, named: Callable[[str], str]) -> None:
        """Write the tensors under other names."""
        file = self.folder / "model.safetensors"
        save_file({named(name): tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})

    def change(self, changed: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """Write other tensors."""
        file = self.folder / "model.safetensors"
        tensors = {name: changed(name, tensor).contiguous() for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})

    def configure(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Write another config.json."""
        path = self.folder / "config.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    def check(self, execute: Execute) -> None:
        """Checks that the text part gives the same results as the whole model."""
        found = [Sequence(prompt, _NUM_NEW) for prompt in _PROMPTS]
        Driver(execute).run(found, seed=1)
        for sequence, (tokens, logprobs) in zip(found, self.greedy, strict=True):
            assert not sequence.errors
            assert sequence.output == tokens
            assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


def _options(case: str) -> dict[str, Any]:
    return {key: value for key, value in CASES[case].items() if key != "family"}


WHOLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Gemma 3": ("gemma3", "gemma3_text", _options("gemma3_text")),
    "Gemma 4": ("gemma4", "gemma4_text", _options("gemma4_text")),
    "Gemma 4 with experts": ("gemma4", "gemma4_text", _options("gemma4_text-experts")),
    "Llama 4": ("llama4", "llama4_text", _options("llama4_text")),
    "Qwen3.5": ("qwen3_5", "qwen3_5_text", _options("qwen3_5_text")),
    "Qwen3.5 with experts": ("qwen3_5_moe", "qwen3_5_moe_text", _options("qwen3_5_moe_text")),
    "Mistral Small 3": ("mistral3", "mistral", {"sliding_window": None}),
    "Ministral 3": ("mistral3", "ministral3", _options("ministral3")),
    "Mistral Small 4": ("mistral3", "mistral4", _options("mistral4")),
    "LLaVA": ("llava", "llama", {}),
    "InternVL": ("internvl", "qwen2", {}),
    "Idefics 3": ("idefics3", "llama", {}),
    "Aria": ("aria", "aria_text", _options("aria_text")),
}


@pytest.mark.parametrize("name", WHOLES)
def test_the_text_part_says_what_the_whole_model_says(name: str, tmp_path: Path) -> None:
    whole = Whole(tmp_path, *WHOLES[name])
    engine = make_engine(tmp_path, max_sequence_len=100)
    assert "transformers" not in engine.description.abilities
    whole.check(execute_on(engine))


def _new_name(name: str) -> str:
    """The name that transformers gives the tensor, for all models, since 4.52."""
    if name.startswith("language_model.model."):
        return f"model.language_model.{name.removeprefix('language_model.model.')}"
    return name.removeprefix("language_model.") if "lm_head" in name else f"model.{name}"


@pytest.mark.parametrize("name", ["Gemma 3", "LLaVA"])
def test_other_names_of_tensors_are_read(name: str, tmp_path: Path) -> None:
    whole = Whole(tmp_path, *WHOLES[name])
    whole.rename(_new_name)
    whole.check(execute_on(make_engine(tmp_path, max_sequence_len=100)))


def test_published_tensors_of_kimi_are_read(tmp_path: Path) -> None:
    whole = Whole(tmp_path, "kimi_k25", "deepseek_v3", _options("deepseek_v3"))
    # This version of transformers saves the layers of the text part under the name `blocks`, a name of the other part.
    whole.rename(lambda name: name.replace("language_model.model.blocks.", "language_model.model.layers."))
    whole.check(execute_on(make_engine(tmp_path, max_sequence_len=100)))


def test_experts_with_inputs_first_are_read_as_those_with_outputs_first(tmp_path: Path) -> None:
    whole = Whole(tmp_path, "qwen3_vl_moe", "qwen3_vl_moe_text", _options("qwen3_vl_moe_text"))
    spec = open_folder(tmp_path).spec
    assert spec is not None
    assert spec.moe is not None
    assert not spec.moe.inputs_first
    whole.change(lambda name, tensor: tensor.transpose(1, 2) if ".experts." in name else tensor)
    spec = open_folder(tmp_path).spec
    assert spec is not None
    assert spec.moe is not None
    assert spec.moe.inputs_first
    whole.check(execute_on(make_engine(tmp_path, max_sequence_len=100)))


def test_a_config_without_a_text_part_of_its_own_is_read(tmp_path: Path) -> None:
    whole = Whole(tmp_path, "qwen2_5_vl", "qwen2_5_vl_text", _options("qwen2_5_vl_text"))

    def flat(raw: dict[str, Any]) -> dict[str, Any]:
        text = raw.pop("text_config")
        rope = text.pop("rope_parameters")
        old = {
            "rope_theta": rope["rope_theta"],
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
        }
        return {**text, **raw, **old, "model_type": "qwen2_5_vl"}

    whole.configure(flat)
    whole.rename(
        lambda name: name.replace("model.language_model.", "model.").replace("model.visual.", "visual.")
    )
    whole.check(execute_on(make_engine(tmp_path, max_sequence_len=100)))


def test_a_text_part_is_computed_by_transformers_where_it_has_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Whole(tmp_path, "llava", "bitnet", {"hidden_size": 64, "head_dim": None})
    engine = make_engine(tmp_path, max_sequence_len=100)
    assert "transformers" in engine.description.abilities
    whole.check(execute_on(engine))
    with thread_ranks.engines(tmp_path, 2, monkeypatch, max_sequence_len=100) as ranks:
        whole.check(thread_ranks.execute_on_all(ranks))


def test_the_words_of_the_whole_model_count(tmp_path: Path) -> None:
    Whole(tmp_path, *WHOLES["Gemma 3"]).configure(
        lambda raw: {**raw, "eos_token_id": [5, 6], "dtype": "bfloat16"}
    )
    (tmp_path / "generation_config.json").unlink()
    assert load_spec(tmp_path).eos_token_ids == (5, 6)
    assert open_folder(tmp_path).dtype == "bfloat16"


@pytest.mark.parametrize("model_type", _LEFT_OUT)
def test_what_files_leave_out_is_what_transformers_fills_in(model_type: str) -> None:
    usual = CONFIG_MAPPING[model_type]()
    for key, value in _LEFT_OUT[model_type].items():
        assert getattr(usual, key) == value, key


def test_a_published_config_that_leaves_most_out_is_read(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}  # fmt: skip
    raw = {"model_type": "gemma3", "text_config": text, "vision_config": {}, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    spec = load_spec(tmp_path)
    assert (spec.vocab_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (262_208, 8, 4, 256)
    assert spec.tied_embeddings
    assert [rope.kind for rope in spec.ropes] == ["linear", "default"]
    assert spec.max_sequence_len == 131_072


@pytest.mark.parametrize(
    "raw",
    [
        {"model_type": "paligemma", "text_config": {"model_type": "gemma"}},
        {"model_type": "florence2", "text_config": {"model_type": "bart", "is_encoder_decoder": True}},
    ],
)
def test_prompts_that_are_read_in_both_directions_are_refused(raw: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(StartError, match=f"{raw['model_type']}.* both directions"):
        open_folder(tmp_path)


def test_a_head_that_nobody_mentions_is_the_embedding(tmp_path: Path) -> None:
    whole = Whole(tmp_path, "mistral3", "ministral3", {**_options("ministral3"), "tie_word_embeddings": True})

    def silent(raw: dict[str, Any]) -> dict[str, Any]:
        for part in (raw, raw["text_config"]):
            part.pop("tie_word_embeddings", None)
        return raw

    whole.configure(silent)
    whole.check(execute_on(make_engine(tmp_path, max_sequence_len=100)))


def test_a_text_part_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": [1]}))
    with pytest.raises(StartError, match=r"text_config is '\[1\]'; expected an object"):
        open_folder(tmp_path)


def test_who_cannot_compute_it_is_named(tmp_path: Path) -> None:
    Whole(tmp_path, *WHOLES["Mistral Small 4"])
    with pytest.raises(
        StartError, match=r"--model-impl transformers: .* has no decoder of model_type 'mistral4'"
    ):
        open_folder(tmp_path, model_impl="transformers")


def test_a_text_part_that_nobody_knows_is_named(tmp_path: Path) -> None:
    raw = {"model_type": "seer", "text_config": {"model_type": "seer_text"}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(StartError, match="model_type 'seer_text' is not supported"):
        open_folder(tmp_path)


def test_a_file_with_images_only_is_refused(tmp_path: Path) -> None:
    whole = Whole(tmp_path, *WHOLES["LLaVA"])
    whole.rename(lambda name: f"vision.{name.replace('.', '_')}")
    with pytest.raises(StartError, match="is in no safetensors file"):
        open_folder(tmp_path)
    assert tiny_model.sizes()["vocab_size"] == load_spec(tmp_path).vocab_size


def test_a_quantized_text_part_names_modules_of_the_other_part(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    tiny_model.save(plain, tiny_model.TinyModel())
    packer, settings = packed(16, 32, "weight_scale_inv"), settings_of_fp8(weight_block_size=[16, 32])
    model = quantize(
        plain, tmp_path / "whole", packer, {**settings, "modules_to_not_convert": ["vision_tower"]}
    )
    file, path = model.folder / "model.safetensors", model.folder / "config.json"
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(file).items()}
    save_file({**tensors, "vision_tower.layers.0.fc1.weight": torch.ones(3, 4)}, file)
    text = json.loads(path.read_text())
    whole = {
        "model_type": "llava",
        "text_config": text,
        "quantization_config": text.pop("quantization_config"),
    }
    path.write_text(json.dumps(whole))
    check_tokens(model)
    change_settings(model.folder, {**settings, "modules_to_not_convert": ["audio_tower"]})
    with pytest.raises(StartError, match=r"modules_to_not_convert is .*audio_tower.* names of modules"):
        make_engine(model.folder)
