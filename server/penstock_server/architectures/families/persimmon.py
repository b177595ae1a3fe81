"""Persimmon: one fused projection by heads, normed queries and keys, squared positive numbers."""

from penstock_server.architectures.family import Family, NameMap

PERSIMMON = Family(
    "persimmon",
    "Persimmon 8B",
    # It has a key head for each query head, whatever else is written.
    aliases={"num_key_value_heads": ""},
    defaults={
        "hidden_act": "relu2",
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
        "max_position_embeddings": 16384,
    },
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_eps",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    qk_norm="head",
    qk_norm_key="qk_layernorm",
    qk_norm_bias=True,
    qkv_layout="grouped",
    gated=False,
    names=NameMap(
        final_norm="model.final_layernorm",
        qkv="self_attn.query_key_value",
        output="self_attn.dense",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        up="mlp.dense_h_to_4h",
        down="mlp.dense_4h_to_h",
    ),
)
