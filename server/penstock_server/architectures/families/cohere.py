"""Command-R and Command-R+, and Command-R7B and A: one norm for both parts, rotary embedding in neighbouring pairs."""

from dataclasses import replace

from penstock_server.architectures.family import Family, NameMap, Windows

COHERE = Family(
    "cohere",
    "Command-R, Command-R+, Aya",
    defaults={"tie_word_embeddings": True, "logit_scale": 0.0625},
    norm_centered=True,
    norm_eps="layer_norm_eps",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="per_head",
    qk_norm_key="use_qk_norm",
    interleaved_rope=True,
    parallel=True,
    logit_scale="logit_scale",
    names=NameMap(mlp_input_norm=""),
)
COHERE2 = replace(
    COHERE,
    model_type="cohere2",
    title="Command-R7B, Command A",
    defaults={**COHERE.defaults, "sliding_window": 4096},
    qk_norm=None,
    windows=Windows(full_every=4),
    rope_only_in_windows=True,
)
