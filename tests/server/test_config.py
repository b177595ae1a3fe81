"""config.json as transformers 4 wrote it means what transformers 5 writes."""

import json
from pathlib import Path
from typing import Any

import models_page
import pytest
import torch
from family_models import CASES, CONVERTED, RENAMED
from penstock_server.architectures.config_json import build_spec
from penstock_server.architectures.registry import FAMILIES, load_spec
from penstock_server.base.errors import StartError
from penstock_server.network.layers.rotary import Rotary
from tiny_model import sizes
from transformers import CONFIG_MAPPING

# The keys that the config classes of transformers 4 named differently.
_OLD_NAMES = {
    "gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    "gemma3_text": {"rope_local_theta": "rope_local_base_freq"},
    "internlm3": {"attention_bias": "qkv_bias", "mlp_bias": "bias"},
}
_GPTJ = {"model_type": "gptj", "n_embd": 72, "n_head": 4, "n_layer": 1, "n_inner": 8}
_MPT = {"model_type": "mpt", "d_model": 72, "n_heads": 4, "n_layers": 1}
_DBRX = {"model_type": "dbrx", "d_model": 72, "n_heads": 4, "n_layers": 1}
_PHI_MOE = {"model_type": "phimoe", "num_local_experts": 4}
_LLAMA4 = {"model_type": "llama4_text", "num_hidden_layers": 2, "intermediate_size_mlp": 8}
_LONG_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_GROUPED = {"model_type": "dots1", "n_group": 4, "num_experts_per_tok": 3, "moe_intermediate_size": 8}


def written_by_5(name: str) -> dict[str, Any]:
    options = {key: value for key, value in {**sizes(), **CASES[name]}.items() if value is not None}
    written: dict[str, Any] = CONFIG_MAPPING[options.pop("family")](**options).to_dict()
    return written


def written_by_4(raw: dict[str, Any]) -> dict[str, Any]:
    raw = dict(raw)
    rope = raw.pop("rope_parameters", None) or {}
    local = rope.get("sliding_attention")
    rope = dict(rope.get("full_attention", rope))
    raw["torch_dtype"] = raw.pop("dtype")
    if local is not None:
        raw["rope_local_theta"] = local["rope_theta"]
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            raw[key] = rope.pop(key)
    raw["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
    if raw["model_type"] == "qwen3_moe":
        raw["num_experts"] = raw.pop("num_local_experts", raw.get("num_experts"))
    names = _OLD_NAMES.get(raw["model_type"], {})
    return {names.get(key, key): value for key, value in raw.items()}


# Which transformers 4 did not know, and whose rotary numbers it could not have written.
_NEW = ("gemma4_text", "gemma4_unified_text", "ministral3", "mistral4")


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if case["family"] not in (*CONVERTED, *RENAMED, *_NEW)]
)
def test_both_spellings_mean_the_same(name: str, tmp_path: Path) -> None:
    new = written_by_5(name)
    family, path = FAMILIES[new["model_type"]], tmp_path / "config.json"
    assert build_spec(family, written_by_4(new), path) == build_spec(family, new, path)


def spec_of(folder: Path, **config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return load_spec(folder)


def test_windows_follow_the_pattern_where_layers_are_not_named(tmp_path: Path) -> None:
    config = {**sizes(), "model_type": "gemma3_text", "sliding_window": 7, "num_hidden_layers": 7}
    assert [layer.window for layer in spec_of(tmp_path, **config).layers] == [7, 7, 7, 7, 7, None, 7]
    config["sliding_window_pattern"] = 2
    spec = spec_of(tmp_path, **config)
    assert [layer.window for layer in spec.layers] == [7, None, 7, None, 7, None, 7]
    assert [layer.rope for layer in spec.layers] == [1, 0, 1, 0, 1, 0, 1]
    assert [rope.theta for rope in spec.ropes] == [1e6, 1e4]


def test_layers_that_rotate_have_chunks_where_kinds_are_not_named(tmp_path: Path) -> None:
    config = {**sizes(), **_LLAMA4, "num_hidden_layers": 5, "interleave_moe_layer_step": 2}
    spec = spec_of(tmp_path, **config)
    assert [layer.chunk for layer in spec.layers] == [8192, 8192, 8192, None, 8192]
    assert [layer.rope for layer in spec.layers] == [0, 0, 0, None, 0]
    assert [layer.is_sparse for layer in spec.layers] == [False, True, False, True, False]
    assert spec.temperature == (8192, 0.1, False)
    spec = spec_of(tmp_path, **config, attn_temperature_tuning=False, moe_layers=[0], attention_chunk_size=16)
    assert spec.temperature is None
    assert [layer.is_sparse for layer in spec.layers] == [True, False, False, False, False]
    assert {layer.chunk for layer in spec.layers} == {16, None}


def test_what_a_config_leaves_out_is_the_family_s_default(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 50}
    spec = spec_of(tmp_path, **config)
    assert (spec.intermediate_size, spec.max_sequence_len, spec.tied_embeddings) == (256, 1024, True)
    assert (spec.activation, spec.norm.eps, spec.ropes) == ("gelu_tanh", 1e-5, ())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bloom", "apply_residual_connection_post_layernorm": True}, "post_layernorm is True"),
        ({**_MPT, "attn_config": {"alibi": False}}, r"attn_config\.alibi is False; expected True"),
        ({**_MPT, "attn_config": {"clip_qkv": -6.0}}, r"attn_config\.clip_qkv is -6\.0; expected a positive number"),
        ({**_DBRX, "ffn_config": {"moe_normalize_expert_weights": 2}},
         r"ffn_config\.moe_normalize_expert_weights is 2; expected 1, the only one supported"),
        ({**_DBRX, "attn_config": []}, r"attn_config is \[\]; expected an object"),
        ({**_DBRX, "ffn_config": {"ffn_act_fn": "gelu"}}, r"ffn_config\.ffn_act_fn is 'gelu'; expected an object"),
        ({**_DBRX, "tie_word_embeddings": True}, "tie_word_embeddings is True; expected False"),
        ({**_DBRX, "ffn_config": {"moe_top_k": 17, "moe_num_experts": 16}}, r"ffn_config\.moe_top_k is 17"),
        ({**_DBRX, "ffn_config": {"ffn_act_fn": {"name": "tanh"}}}, r"ffn_config\.ffn_act_fn\.name is 'tanh'"),
        ({"model_type": "gpt_oss", "swiglu_limit": 6.0}, r"swiglu_limit is 6\.0"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "num_experts_per_tok is 3"),
        ({"model_type": "stablelm", "partial_rotary_factor": 0.1}, "an even part of the 18 numbers"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "for each of the 3 layers"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1}, "attn_logit_softcapping is -1"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before is False; expected True"),
        ({"model_type": "opt", "word_embed_proj_dim": 36}, "word_embed_proj_dim is 36; expected 72"),
        ({"model_type": "smollm3", "no_rope_layers": [1, 2, 1]}, "no_rope_layers is .*0 or 1 for each of the 3"),
        ({"model_type": "llama", "hidden_act": "relu2"}, "expected an activation of a gated layer"),
        ({**_GPTJ, "rotary_dim": 7}, "rotary_dim is 7; expected an even number"),
        ({**_LLAMA4, "attention_chunk_size": 0}, "attention_chunk_size is 0; expected a whole number from 1"),
        ({**_LLAMA4, "layer_types": ["sliding_attention"] * 2}, "full_attention or chunked_attention for each"),
        ({**_LLAMA4, "moe_layers": [2]}, r"moe_layers is \[2\]; expected a list of layers below 2"),
        ({**_LLAMA4, "floor_scale": -1}, "floor_scale is -1; expected a positive number"),
        ({**_LLAMA4, "rope_scaling": _LONG_YARN}, "is 'yarn'; expected a kind that keeps the size of queries"),
        ({**_PHI_MOE, "num_experts_per_tok": 3}, "num_experts_per_tok is 3; expected 2"),
        ({**_PHI_MOE, "router_jitter_noise": -1}, "router_jitter_noise is -1; expected 0 or a positive number"),
        ({"model_type": "cohere2_moe", "sliding_window_pattern": 4.0}, "pattern is 4.0; expected a whole"),
        ({"model_type": "cohere2_moe", "first_k_dense_replace": -1}, "is -1; expected a whole number from 0 to 9999"),
        ({"model_type": "hyperclovax", "use_post_norm": "no"}, "use_post_norm is 'no'; expected true or false"),
        ({"model_type": "sarvam_moe", "score_function": "softmax"}, "score_function is 'softmax'; expected sigmoid"),
        ({"model_type": "exaone_moe"}, "num_experts is missing"),
        ({"model_type": "nemotron_h"}, "layers_block_type is None; expected a kind for each layer, or a letter"),
        ({"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": [[], {}]}, "for each of the 2 layers"),
        ({"model_type": "granite_swa", "layer_rope_theta": [1e4, 0.5, 0]}, "0 or a number above 1 for each"),
        ({"model_type": "granite_swa", "layer_rope_theta": [0, 0]}, r"layer_rope_theta is \[0, 0\]"),
        ({"model_type": "afmoe", "attention_bias": True}, "attention_bias is True; expected False"),
        ({"model_type": "olmoe", "clip_qkv": 8.0}, r"clip_qkv is 8\.0"),
        ({**_GROUPED, "n_routed_experts": 6}, "n_group is 4; expected groups of the same size"),
        ({**_GROUPED, "n_routed_experts": 8}, "num_experts_per_tok is 3; expected a whole number from 1 to 2"),
        ({"model_type": "llama", "rope_theta": 0.5}, r"rope_theta is 0\.5"),
        ({"model_type": "llama", "rope_parameters": {"sliding_attention": {}}}, "one set of numbers for all layers"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_names_key_and_value(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        spec_of(tmp_path, **{**sizes(), **config})


def test_the_page_of_models_equals_the_registry() -> None:
    assert models_page.PAGE.read_text() == models_page.page(), "run `make docs`"


def test_slopes_are_a_series_and_every_second_number_of_a_denser_one(tmp_path: Path) -> None:
    config = {**sizes(), "model_type": "bloom", "n_head": 12, "n_layer": 1, "seq_length": 64}
    slopes = spec_of(tmp_path, **config).slopes
    assert slopes == tuple(2.0**-power for power in (1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5))
    config = {"model_type": "falcon", "alibi": True, "hidden_size": 64, "num_attention_heads": 4}
    config["ffn_hidden_size"] = 8
    scaled = spec_of(tmp_path, **{**sizes(), **config, "head_dim": 16}).slopes
    assert scaled == tuple(0.25 * 2.0**-power for power in (2, 4, 6, 8))


def test_a_published_dbrx_has_its_numbers_in_two_objects(tmp_path: Path) -> None:
    attention = {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000}
    feed_forward = {"ffn_hidden_size": 10752, "moe_jitter_eps": 0.01, "moe_num_experts": 16, "moe_top_k": 4}
    spec = spec_of(
        tmp_path, model_type="dbrx", d_model=6144, n_heads=48, n_layers=40, max_seq_len=32768, vocab_size=100352,
        attn_config={"model_type": "", **attention}, ffn_config={"model_type": "", **feed_forward},
    )  # fmt: skip
    assert (spec.num_kv_heads, spec.head_dim, spec.qkv_limit, spec.ropes[0].theta) == (8, 128, 8.0, 500000.0)
    assert (spec.moe.expert_size, spec.moe.num_experts, spec.moe.top_k) == (10752, 16, 4)
    assert (spec.moe.normalized, spec.activation, spec.norm.eps) == (True, "silu", 1e-5)


def test_a_choice_of_phi_moe_may_be_weighed_alone(tmp_path: Path) -> None:
    assert spec_of(tmp_path, **{**sizes(), **_PHI_MOE, "router_jitter_noise": 0}).moe.distance == 0.0


def test_what_granites_with_windows_leave_out_is_as_in_transformers(tmp_path: Path) -> None:
    left_out = {"tie_word_embeddings": None, "max_position_embeddings": None}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    dense = spec_of(tmp_path, **{**sizes(), "model_type": "granite_swa", **left_out})
    assert (dense.tied_embeddings, dense.norm.eps, dense.max_sequence_len) == (True, 1e-5, 8192)
    sparse = spec_of(tmp_path, **{**sizes(), "model_type": "granitemoe_swa", **experts, **left_out})
    assert (sparse.tied_embeddings, sparse.norm.eps) == (False, 1e-6)


def test_long_phi_moe_has_factors_and_amplitude_for_long_sequences(tmp_path: Path) -> None:
    factors = {"short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0], "short_mscale": 1.1, "long_mscale": 1.3}
    spec = spec_of(
        tmp_path,
        **{**sizes(), "model_type": "phimoe", "hidden_size": 32, "head_dim": None, "num_local_experts": 4},
        sliding_window=131072,
        rope_scaling={"type": "longrope", "original_max_position_embeddings": 100, **factors},
    )
    assert (spec.moe.distance, spec.norm.centered, spec.ropes[0].theta) == (0.02, True, 1e6)
    plain = torch.tensor([1.0, 1e-3])
    for served, scaled, amplitude in (
        (100, plain / torch.tensor([1.0, 2.0]), 1.1),
        (101, plain / torch.tensor([4.0, 8.0]), 1.3),
    ):
        rotary = Rotary(spec.ropes[0], served, torch.device("cpu"))
        torch.testing.assert_close(rotary.inv_freq, scaled)
        assert rotary.amplitude == amplitude


# The settings that the makers of these models write.
_EXAONE = {
    "model_type": "exaone", "activation_function": "silu", "layer_norm_epsilon": 1e-5, "num_layers": 3,
    "num_hidden_layers": None, "rope_theta": 1e6, "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}  # fmt: skip
_SARVAM = {
    "model_type": "sarvam_moe", "num_experts": 8, "num_shared_experts": 2, "num_experts_per_tok": 2,
    "use_qkv_bias": True, "use_bias": False, "moe_intermediate_size": 44, "moe_router_enable_expert_bias": True,
    "rope_theta": 8e6,
}  # fmt: skip
_MELLUM = {
    "model_type": "mellum", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 44,
    "use_sliding_window": True, "max_window_layers": 0, "sliding_window": 9, "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 16.0, "attention_factor": 1.2},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
    },
}  # fmt: skip


def test_keys_of_makers_are_read_as_those_of_transformers(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **{**sizes(), **_EXAONE})
    assert (spec.num_layers, spec.norm.eps, spec.activation, spec.ropes[0].kind) == (
        3,
        1e-5,
        "silu",
        "llama3",
    )
    spec = spec_of(tmp_path, **{**sizes(), **_SARVAM})
    assert (spec.moe.num_experts, spec.moe.shared_size, spec.qkv_bias, spec.qk_norm) == (8, 88, True, "head")
    assert [layer.is_sparse for layer in spec.layers] == [False, True, True]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    spec = spec_of(tmp_path, **{**sizes(), **_MELLUM, "layer_types": kinds})
    assert [(layer.window, layer.rope) for layer in spec.layers] == [(9, 1), (None, 0), (9, 1)]
    assert [(rope.kind, rope.theta) for rope in spec.ropes] == [("yarn", 5e5), ("default", 5e5)]
    assert all(layer.is_sparse for layer in spec.layers)


def test_the_first_of_some_layers_may_be_the_one_that_sees_everything(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, **{**sizes(), "model_type": "cwm", "sliding_window": 7, "num_hidden_layers": 6})
    assert [layer.window for layer in spec.layers] == [None, 7, 7, 7, None, 7]
    assert (spec.ropes[0].kind, spec.ropes[0].theta, spec.ropes[0].scaling["factor"]) == ("llama3", 1e6, 16.0)


def test_layers_rotate_by_the_angles_that_are_listed(tmp_path: Path) -> None:
    config = {**sizes(), "model_type": "granite_swa", "rope_theta": 7.0}
    assert [layer.rope for layer in spec_of(tmp_path, **config).layers] == [0, 0, 0]
    spec = spec_of(tmp_path, **config, layer_rope_theta=[1e4, 0, 500])
    assert [layer.rope for layer in spec.layers] == [1, None, 0]
    assert [rope.theta for rope in spec.ropes] == [500.0, 1e4]
    spec = spec_of(tmp_path, **config, layer_rope_theta=[0, 0, 0])
    assert ([layer.rope for layer in spec.layers], spec.ropes) == ([None] * 3, ())


# North Mini Code, but for its sizes.
_NORTH = {
    "model_type": "cohere2_moe", "expert_selection_fn": "sigmoid", "first_k_dense_replace": 1, "intermediate_size": 44,
    "layer_norm_eps": 1e-5, "norm_topk_prob": False, "num_experts": 8, "num_experts_per_tok": 2,
    "num_shared_experts": 0, "prefix_dense_intermediate_size": 132, "prefix_dense_sliding_window_pattern": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000, "sliding_window": 9, "tie_word_embeddings": None, "use_parallel_block": True,
    "use_qk_norm": False,
}  # fmt: skip


def test_dense_layers_before_experts_rotate_though_they_see_everything(tmp_path: Path) -> None:
    config = {**sizes(), **_NORTH, "num_hidden_layers": 6}
    spec = spec_of(tmp_path, **config)
    assert [layer.window for layer in spec.layers] == [None, 9, 9, 9, None, 9]
    assert [layer.rope for layer in spec.layers] == [0, 0, 0, 0, None, 0]
    assert [layer.is_sparse for layer in spec.layers] == [False] + [True] * 5
    assert (spec.intermediate_size, spec.moe.expert_size, spec.moe.shared_size) == (132, 44, 0)
    assert (spec.norm.centered, spec.norm.eps, spec.tied_embeddings, spec.moe.normalized) == (
        False,
        1e-6,
        True,
        False,
    )
    with pytest.raises(
        StartError, match=r"mlp_layer_types is .*; expected dense or sparse for each of the 6 layers"
    ):
        spec_of(tmp_path, **config, mlp_layer_types=["sparse"])
    for key, value in (
        ("sliding_window_pattern", 0),
        ("first_k_dense_replace", -1),
        ("expert_selection_fn", "tanh"),
    ):
        with pytest.raises(StartError, match=f"{key} is '?{value}'?; expected"):
            spec_of(tmp_path, **{**config, key: value})
