"""OLMo 2: norms behind attention and feed-forward and none before them; queries and keys normalised as a whole."""

from penstock_server.architectures.family import Family, NameMap

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
