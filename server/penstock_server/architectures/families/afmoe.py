"""AFMoE: gates of what each head finds, norms on both sides of each part, experts, and windows with the only angles."""

from dataclasses import replace

from penstock_server.architectures.families.shared_experts import SHARED_NAMES
from penstock_server.architectures.family import Experts, Family, Windows

AFMOE = Family(
    "afmoe",
    "Trinity Nano, Mini, Large",
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 16384,
        "sliding_window": 1024,
        "num_dense_layers": 1,
        "num_shared_experts": 2,
        "route_scale": 1.0,
    },
    # Gates would have no bias. The others are keys of its makers.
    fixed={
        "attention_bias": False,
        "score_func": "sigmoid",
        "route_norm": True,
        "n_group": 1,
        "topk_group": 1,
    },
    qk_norm="head",
    gated_attention=True,
    windows=Windows(full_every=4, pattern_key="global_attn_every_n_layers"),
    rope_only_in_windows=True,
    scales_embedding_by_size="mup_enabled",
    experts=Experts(
        normalized=True,
        sigmoid=True,
        correction_dims=1,
        scale="route_scale",
        first_layer_key="num_dense_layers",
        shared_count="num_shared_experts",
        gates_shared=False,
    ),
    names=replace(
        SHARED_NAMES,
        attention_gate="self_attn.gate_proj",
        attention_output_norm="post_attention_layernorm",
        mlp_input_norm="pre_mlp_layernorm",
        mlp_output_norm="post_mlp_layernorm",
        router="mlp.router.gate",
        router_correction="mlp.expert_bias",
    ),
)
