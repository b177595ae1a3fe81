"""Folders of Kimi Linear as its makers write them, which transformers writes otherwise."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.architectures.registry import load_spec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.model_folder import open_folder
from safetensors.torch import load_file, save_file


@pytest.fixture
def folders(saved_model: Callable[..., Any], tmp_path: Path) -> tuple[Any, Path]:
    """The model, and its folder under the names and with the config of its makers."""
    options = {key: value for key, value in CASES["kimi_linear"].items() if key != "family"}
    saved = saved_model("kimi_linear", **options)
    raw = json.loads((saved.folder / "config.json").read_text())
    kinds, dense = raw.pop("layer_types"), raw.pop("mlp_layer_types").count("dense")
    numbers = {
        kind: [layer for layer, found in enumerate(kinds, start=1) if found == f"{kind}_attention"]
        for kind in ("full", "linear")
    }
    raw["first_k_dense_replace"] = dense
    raw["linear_attn_config"] = {
        "full_attn_layers": numbers["full"],
        "kda_layers": numbers["linear"],
        "head_dim": raw.pop("linear_head_dim"),
        "num_heads": raw.pop("linear_num_heads"),
        "short_conv_kernel_size": raw.pop("linear_conv_kernel_dim"),
    }
    raw |= {"mla_use_nope": True, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid"}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for name in ("tokenizer.json",):
        (tmp_path / name).write_bytes((saved.folder / name).read_bytes())
    tensors = load_file(saved.folder / "model.safetensors")
    of_dense = tuple(f"model.layers.{layer}.block_sparse_moe." for layer in range(dense))
    renamed = {
        name.replace("block_sparse_moe", "mlp") if name.startswith(of_dense) else name: tensor
        for name, tensor in tensors.items()
    }
    assert renamed.keys() != tensors.keys()
    save_file(renamed, tmp_path / "model.safetensors")
    return saved, tmp_path


def test_its_makers_folder_is_the_same_model(folders: tuple[Any, Path]) -> None:
    saved, folder = folders
    assert load_spec(folder) == load_spec(saved.folder)
    prompt = list(range(3, 40))
    sequence = Sequence(prompt, 5)
    Driver(execute_on(make_engine(folder, max_sequence_len=100))).run([sequence], seed=1)
    assert (sequence.errors, sequence.output) == ([], oracle.greedy(saved.oracle, prompt, 5)[0])


def test_decode_steps_in_c_are_recorded(
    saved_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    options = {key: value for key, value in CASES["kimi_linear-in-c"].items() if key != "family"}
    caplog.set_level("INFO")
    engine = make_engine(saved_model("kimi_linear", **options).folder, max_sequence_len=100)
    Driver(execute_on(engine)).run([Sequence([5, 6, 7], 6)], seed=None)
    assert engine.description.attention_backend == "native"
    assert "decode steps are not recorded" not in caplog.text


def test_without_kinds_every_fourth_layer_attends(folders: tuple[Any, Path]) -> None:
    _saved, folder = folders
    raw = json.loads((folder / "config.json").read_text())
    for key in ("full_attn_layers", "kda_layers"):
        del raw["linear_attn_config"][key]
    (folder / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": 9}))
    layers = load_spec(folder).layers
    assert [number for number, layer in enumerate(layers) if layer.has_attention] == [4, 8]
    assert all(layer.has_attention != layer.is_recurrent for layer in layers)


def test_a_tensor_under_two_names_is_refused(folders: tuple[Any, Path]) -> None:
    folder = folders[1]
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    twice = {**tensors, name.replace("mlp", "block_sparse_moe"): tensors[name].clone()}
    save_file(twice, folder / "model.safetensors")
    with pytest.raises(StartError, match=r"down_proj\.weight is there as model\.layers\.0"):
        open_folder(folder)
    assert len(Checkpoint.open(folder).entries) == len(twice)
