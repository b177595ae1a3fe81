"""Layers with heads of their own, and layers that read the keys and values of another one."""

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.architectures.registry import load_spec
from penstock_server.architectures.spec import CacheShape, KvHeads
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from penstock_server.network.kv_cache import CacheFormat, KVCache, block_bytes
from quantized_models import change_settings, quantize
from safetensors.torch import load_file, save_file
from test_quantization_float8 import packed, settings
from transformers import CONFIG_MAPPING

CPU = torch.device("cpu")
SHAPE = CacheShape((KvHeads(4, 16), KvHeads(2, 48), KvHeads(4, 16), KvHeads(2, 48)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gemma4")
    options = dict(CASES["gemma4_text"])
    tiny_model.save(made, tiny_model.TinyModel(options.pop("family"), options))
    return made


def changed(folder: Path, target: Path, **keys: Any) -> Path:
    """A copy of the config, with other keys."""
    raw = json.loads((folder / "config.json").read_text())
    target.mkdir()
    (target / "config.json").write_text(json.dumps({**raw, **keys}))
    return target


def test_only_layers_with_keys_of_their_own_have_a_cache(folder: Path) -> None:
    engine = make_engine(folder, max_sequence_len=100)
    assert engine.model.cache_shape.heads == (KvHeads(4, 16), KvHeads(4, 32)) * 2
    assert engine.cache.block_bytes == block_bytes(engine.model.cache_shape, 4, torch.float32)
    assert engine.cache.block_bytes == 4 * 2 * 4 * (2 * 4 * 16 + 2 * 4 * 32)


def test_blocks_of_unlike_layers_are_read_written_moved_and_copied() -> None:
    first, second = (KVCache(SHAPE, 7, 4, CacheFormat(torch.float32), CPU) for _ in range(2))
    for number, layer in enumerate(first.layers):
        layer.key.copy_(torch.randn_like(layer.key) + number)
        layer.value.copy_(torch.randn_like(layer.value) - number)
    assert (first.num_blocks, len(first.pools)) == (6, 2)
    data = first.read_blocks([5, 0, 3])
    assert len(data) == 3 * first.block_bytes
    second.spoil()
    second.write_blocks([1, 2, 6], torch.frombuffer(bytearray(data), dtype=torch.uint8))
    for ours, theirs in zip(first.layers, second.layers, strict=True):
        assert torch.equal(ours.key[[5, 0, 3]], theirs.key[[1, 2, 6]])
        assert torch.equal(ours.value[[5, 0, 3]], theirs.value[[1, 2, 6]])
        assert theirs.key[0].isnan().all()
    second.copy_blocks([1, 2], [3, 4])
    second.move(torch.tensor([4]), torch.tensor([0]))
    second.blank(torch.tensor([1]))
    for layer in second.layers:
        assert torch.equal(layer.key[3:5], layer.key[1:3])
        assert torch.equal(layer.value[0, 0], layer.value[1, 0])
        assert not layer.key[0, 1].any()


def test_what_files_have_of_readers_is_left_out(folder: Path, tmp_path: Path) -> None:
    """Also where weights are quantized, and what nobody needs would be refused."""
    fp8 = settings(weight_block_size=[16, 32])
    model = quantize(folder, tmp_path / "fp8", packed(16, 32, "weight_scale_inv"), fp8)
    change_settings(model.folder, fp8)
    file = model.folder / "model.safetensors"
    tensors = load_file(file)
    copied = {
        name.replace("layers.0.", "layers.4."): tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith("model.layers.0.self_attn.") and ("k_" in name or "v_" in name)
    }
    assert len(copied) == 5
    save_file({**tensors, **copied}, file)
    checkpoint = open_folder(model.folder).checkpoint
    assert checkpoint is not None
    assert set(checkpoint.left_out) == set(copied)
    (found,) = Driver(execute_on(make_engine(model.folder, max_sequence_len=100))).run(
        [Sequence([7, 8, 9], 3)]
    )
    assert not found.errors


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"num_kv_shared_layers": 5},
            "num_kv_shared_layers is 5; expected fewer: layer 1 has none of its kind",
        ),
        ({"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7; expected a whole number from 0 to 6"),
        (
            {"per_layer_config": {"1": {"num_key_value_heads": 3}}},
            "num_attention_heads 8 is no multiple of .* 3",
        ),
        ({"per_layer_config": {"1": {"head_dim": 33}}}, "head_dim is 33; expected an even number"),
        ({"per_layer_config": {"1": 5}}, "per_layer_config is 5; expected an object for each layer"),
        (
            {"per_layer_config": [1]},
            "per_layer_config is .*; expected an object with numbers of layers below 6",
        ),
        ({"per_layer_config": {"1": {}, "01": {}}}, "per_layer_config is .* numbers of layers below 6"),
        ({"per_layer_config": {"6": {}}}, "per_layer_config is .* numbers of layers below 6"),
        ({"per_layer_config": {"-1": {"head_dim": 32}}}, "per_layer_config is .* numbers of layers below 6"),
        (
            {"per_layer_config": {"5": {"head_dim": 32}}},
            "expected the heads of layer 3, whose keys layer 5 reads",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"] * 3},
            "layer_types is .* the only one supported",
        ),
        (
            {"rope_parameters": {"foo": {}}},
            "rope_parameters is .*; expected numbers for full_attention and sliding",
        ),
        (
            {"rope_parameters": {"sliding_attention": {}}},
            "rope_parameters is .*; expected numbers for full_attention",
        ),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(StartError, match=message):
        load_spec(changed(folder, tmp_path / "changed", **keys))


def test_heads_of_layers_are_read_as_published(folder: Path, tmp_path: Path) -> None:
    """transformers writes them layer by layer; published files have keys of their own."""
    written = load_spec(folder)
    published = {"per_layer_config": None, "global_head_dim": 32, "use_bidirectional_attention": "vision"}
    assert load_spec(changed(folder, tmp_path / "published", **published)) == written


def test_numbers_of_layers_have_as_many_digits_as_the_largest_one(tmp_path: Path) -> None:
    options = {
        **CASES["gemma4_text"],
        "num_hidden_layers": 12,
        "layer_types": 6 * ["sliding_attention", "full_attention"],
    }
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    assert "01" in json.loads((tmp_path / "config.json").read_text())["per_layer_config"]
    assert load_spec(tmp_path).kv_heads == 6 * (KvHeads(4, 16), KvHeads(4, 32))


def test_layers_that_are_all_alike_are_read_as_transformers_writes_them(tmp_path: Path) -> None:
    options = {**CASES["gemma4_text"], "global_head_dim": 16}
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    assert json.loads((tmp_path / "config.json").read_text())["per_layer_config"] == {}
    assert set(load_spec(tmp_path).kv_heads) == {KvHeads(4, 16)}


@pytest.mark.parametrize(
    "name", ["gemma4_text-keys-as-values", "ministral3", "mistral4", "qwen2_5_vl_text", "qwen3_vl_text"]
)
def test_what_a_config_leaves_out_is_as_transformers_fills_it_in(name: str, tmp_path: Path) -> None:
    sizes = {key: value for key, value in {**tiny_model.sizes(), **CASES[name]}.items() if value is not None}
    left_out = ("rope_parameters", "layer_types", "max_position_embeddings", "per_layer_config")
    options = {
        key: value for key, value in sizes.items() if key not in (*left_out, "family", "global_head_dim")
    }
    config: Any = CONFIG_MAPPING[CASES[name]["family"]](**options)
    published = {"global_head_dim": 512, "num_global_key_value_heads": 2}
    specs = []
    for keys in ((), (*left_out, "rms_norm_eps")):
        written = {key: value for key, value in config.to_dict().items() if key not in keys}
        (tmp_path / "config.json").write_text(json.dumps({**written, **published}))
        specs.append(load_spec(tmp_path))
    assert specs[0] == specs[1]
