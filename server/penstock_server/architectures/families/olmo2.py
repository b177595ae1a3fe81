"""OLMo 1, whose norms have no weights; OLMo 2 and 3: norms behind attention and feed-forward, none before them; queries
and keys normalised as a whole."""

from dataclasses import replace

from penstock_server.architectures.family import Experts, Family, NameMap, Windows

OLMO = Family(
    "olmo",
    "OLMo 1",
    norm_centered=True,
    norm_weights=False,
    # Whatever is written.
    norm_eps="",
    qkv_limit="clip_qkv",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
)
OLMO2 = Family(
    "olmo2",
    "OLMo 2",
    defaults={"rms_norm_eps": 1e-5},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="all_heads",
    names=NameMap(
        attention_input_norm="",
        attention_output_norm="post_attention_layernorm",
        mlp_input_norm="",
        mlp_output_norm="post_feedforward_layernorm",
    ),
)
OLMO3 = replace(
    OLMO2,
    model_type="olmo3",
    title="OLMo 3",
    defaults={**OLMO2.defaults, "sliding_window": 4096, "rope_theta": 500000.0},
    windows=Windows(full_every=4),
    # Only layers that see everything are stretched.
    local_rope=("rope_theta", 500000.0),
)
OLMOE = Family(
    "olmoe",
    "OLMoE",
    defaults={"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    # transformers limits normed queries and keys, its makers those before: no published model does.
    fixed={"clip_qkv": None},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="all_heads",
    experts=Experts(size="intermediate_size"),
)
FLEX_OLMO = replace(
    OLMO2,
    model_type="flex_olmo",
    title="FlexOlmo",
    defaults={"max_position_embeddings": 4096, "rope_theta": 500000.0},
    experts=Experts(size="intermediate_size"),
)
