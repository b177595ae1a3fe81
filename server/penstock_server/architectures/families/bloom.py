"""BLOOM and MPT: no positions but a slope of the scores in every head (ALiBi)."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap
from penstock_server.architectures.nested import lifted


def _with_own_size(family: Family, raw: dict[str, Any]) -> Family:
    """The feed-forward is four times as wide."""
    size = raw.get(family.aliases.get("hidden_size", "hidden_size"))
    if not isinstance(size, int):
        return family
    return replace(family, defaults={**family.defaults, "intermediate_size": 4 * size})


BLOOM = Family(
    "bloom",
    "BLOOM, BLOOMZ",
    aliases={
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "seq_length",
        # It has none of these; what is written elsewhere means nothing.
        "num_key_value_heads": "",
        "intermediate_size": "",
        "hidden_act": "",
    },
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"},
    fixed={"apply_residual_connection_post_layernorm": False},
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_epsilon",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    qkv_layout="grouped",
    rotary=False,
    alibi=True,
    gated=False,
    names=NameMap(
        embedding="transformer.word_embeddings",
        embedding_norm="transformer.word_embeddings_layernorm",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}.",
        qkv="self_attention.query_key_value",
        output="self_attention.dense",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
    adapt=_with_own_size,
)

# Fields with which it would be another model, and the only values that are served.
_ATTENTION = {"alibi": True, "qk_ln": False, "prefix_lm": False, "softmax_scale": None}


def _with_attention(family: Family, raw: dict[str, Any]) -> Family:
    """Keys of attention stand in an object of their own."""
    keys = (*_ATTENTION, "alibi_bias_max", "clip_qkv")
    return lifted(_with_own_size(family, raw), raw, "attn_config", {key: key for key in keys})


MPT = replace(
    BLOOM,
    model_type="mpt",
    title="MPT 7B, 30B",
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
        "num_key_value_heads": "",
        "intermediate_size": "",
        "hidden_act": "",
    },
    defaults={"tie_word_embeddings": True, "hidden_act": "gelu"},
    fixed=_ATTENTION,
    norm_bias=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qkv_layout="stacked",
    qkv_limit="clip_qkv",
    names=NameMap(
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
        layer="transformer.blocks.{}.",
        attention_input_norm="norm_1",
        mlp_input_norm="norm_2",
        qkv="attn.Wqkv",
        output="attn.out_proj",
        up="ffn.up_proj",
        down="ffn.down_proj",
    ),
    adapt=_with_attention,
)
