"""Phi-1 to Phi-2; Phi-3, Phi-3.5 and Phi-4, mini and large; Phi-3.5-MoE."""

from penstock_server.architectures.families.mixtral import MIXTRAL
from penstock_server.architectures.family import Experts, Family, NameMap, Windows

PHI = Family(
    "phi",
    "Phi-1, Phi-1.5, Phi-2",
    defaults={"hidden_act": "gelu_new", "partial_rotary_factor": 0.5},
    norm_centered=True,
    norm_bias=True,
    norm_eps="layer_norm_eps",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    qk_norm="head",
    qk_norm_key="qk_layernorm",
    qk_norm_bias=True,
    gated=False,
    parallel=True,
    head_bias=True,
    names=NameMap(
        final_norm="model.final_layernorm",
        mlp_input_norm="",
        output="self_attn.dense",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        up="mlp.fc1",
        down="mlp.fc2",
    ),
)
PHI3 = Family(
    "phi3",
    "Phi-3, Phi-3.5, Phi-4",
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    windows=Windows(),
    rope_kinds={"su": "longrope", "yarn": "longrope"},
)
PHIMOE = Family(
    "phimoe",
    "Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE",
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "router_jitter_noise": 0.01,
        "num_experts_per_tok": 2,
    },
    # Its router knows two choices only; a bias of the head needs a head.
    fixed={"num_experts_per_tok": 2, "tie_word_embeddings": False},
    norm_centered=True,
    norm_bias=True,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    windows=Windows(),
    experts=Experts(size="intermediate_size", normalized=False, jitter="router_jitter_noise"),
    head_bias="lm_head_bias",
    names=MIXTRAL.names,
)
