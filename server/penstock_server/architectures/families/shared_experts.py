"""Routers with a correction, groups and a scale, and shared experts: dots.llm1, GLM-4.5, MiniMax-M2, ERNIE 4.5, Solar
Open, Sarvam, Hy3."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap, Windows

SHARED_NAMES = NameMap(
    shared_gate="mlp.shared_experts.gate_proj",
    shared_up="mlp.shared_experts.up_proj",
    shared_down="mlp.shared_experts.down_proj",
)
# The routing that DeepSeek V3 introduced.
CORRECTED = Experts(
    sigmoid=True,
    wide_router=True,
    correction_dims=1,
    groups=("n_group", "topk_group"),
    sums_pairs=True,
    scale="routed_scaling_factor",
    first_layer_key="first_k_dense_replace",
    shared_count="n_shared_experts",
    gates_shared=False,
)
DOTS1 = Family(
    "dots1",
    "dots.llm1",
    aliases={"num_experts": "n_routed_experts"},
    defaults={"sliding_window": 4096},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    windows=Windows(first_key="max_window_layers", switch_key="use_sliding_window"),
    experts=CORRECTED,
    names=SHARED_NAMES,
)
GLM4_MOE = Family(
    "glm4_moe",
    "GLM-4.5, GLM-4.6, GLM-4.7",
    aliases={"num_experts": "n_routed_experts"},
    defaults={
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "max_position_embeddings": 131072,
    },
    qkv_bias="attention_bias",
    qk_norm="head",
    qk_norm_key="use_qk_norm",
    experts=CORRECTED,
    names=SHARED_NAMES,
)
GLM4V_MOE = replace(
    GLM4_MOE,
    model_type="glm4v_moe_text",
    title="GLM-4.5V, GLM-4.6V (text)",
    defaults={**GLM4_MOE.defaults, "attention_bias": True, "max_position_embeddings": 65536},
    qk_norm=None,
    qk_norm_key="",
)


def _with_rotary_dim(family: Family, raw: dict[str, Any]) -> Family:
    """Read the makers' form, a number of dimensions of a head; transformers writes the part of a head."""
    return replace(family, rotary_dim_key="rotary_dim") if isinstance(raw.get("rotary_dim"), int) else family


MINIMAX_M2 = Family(
    "minimax_m2",
    "MiniMax-M2",
    defaults={"head_dim": 128, "rope_theta": 5e6, "max_position_embeddings": 196608},
    qk_norm="all_heads",
    experts=Experts(size="intermediate_size", normalized=True, sigmoid=True, correction_dims=1),
    names=NameMap(
        router="block_sparse_moe.gate",
        router_correction="block_sparse_moe.e_score_correction_bias",
        experts_gate_up="block_sparse_moe.experts.gate_up_proj",
        experts_down="block_sparse_moe.experts.down_proj",
        expert_gate="block_sparse_moe.experts.{}.w1",
        expert_up="block_sparse_moe.experts.{}.w3",
        expert_down="block_sparse_moe.experts.{}.w2",
    ),
    adapt=_with_rotary_dim,
)
ERNIE4_5_MOE = Family(
    "ernie4_5_moe",
    "ERNIE 4.5 21B-A3B, 300B-A47B",
    aliases={
        "num_experts": "moe_num_experts",
        "num_experts_per_tok": "moe_k",
        "decoder_sparse_step": "moe_layer_interval",
    },
    defaults={
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "moe_layer_start_index": 1,
        "moe_num_shared_experts": 2,
    },
    # A bias would be in the shared expert, too.
    fixed={"use_bias": False},
    interleaved_rope=True,
    experts=Experts(
        normalized=True,
        wide_router=True,
        correction_dims=2,
        first_layer_key="moe_layer_start_index",
        last_layer_key="moe_layer_end_index",
        shared_count="moe_num_shared_experts",
        gates_shared=False,
    ),
    names=replace(SHARED_NAMES, router_correction="mlp.moe_statics.e_score_correction_bias"),
)
SOLAR_OPEN = replace(
    GLM4_MOE,
    model_type="solar_open",
    title="Solar Open 100B",
    # No layer is dense.
    aliases={**GLM4_MOE.aliases, "intermediate_size": "moe_intermediate_size"},
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "norm_topk_prob": True,
        "n_shared_experts": 1,
        "max_position_embeddings": 131072,
    },
    qk_norm=None,
    qk_norm_key="",
    experts=replace(CORRECTED, first_layer_key=""),
)
# Our keys, and those of its makers; transformers writes ours.
_OF_SARVAM = {
    "num_experts": "num_experts",
    "n_shared_experts": "num_shared_experts",
    "attention_bias": "use_qkv_bias",
}


def _with_keys_of_sarvam(family: Family, raw: dict[str, Any]) -> Family:
    aliases = {ours: theirs for ours, theirs in _OF_SARVAM.items() if theirs in raw}
    return replace(family, aliases={**family.aliases, **aliases})


SARVAM_MOE = replace(
    GLM4_MOE,
    model_type="sarvam_moe",
    title="Sarvam 30B",
    defaults={
        "head_dim": 64,
        "rope_theta": 8e6,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "use_qk_norm": True,
        "max_position_embeddings": 131072,
    },
    # Keys of its makers.
    fixed={"use_bias": False, "moe_router_enable_expert_bias": True, "score_function": "sigmoid"},
    names=replace(
        SHARED_NAMES,
        embedding="model.word_embeddings",
        qkv="attention.query_key_value",
        output="attention.dense",
        query_norm="attention.query_layernorm",
        key_norm="attention.key_layernorm",
        router_correction="mlp.gate.expert_bias",
    ),
    adapt=_with_keys_of_sarvam,
)
HY_V3 = Family(
    "hy_v3",
    "Hy3",
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 11158840.0,
        "max_position_embeddings": 131072,
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "router_scaling_factor": 2.826,
    },
    # A bias would be in the shared expert, too. The others are keys of its makers.
    fixed={"mlp_bias": False, "qk_norm": True, "route_norm": True, "moe_router_use_sigmoid": True},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    experts=Experts(
        normalized=True,
        sigmoid=True,
        wide_router=True,
        correction_dims=1,
        scale="router_scaling_factor",
        first_layer_key="first_k_dense_replace",
        shared_count="num_shared_experts",
        gates_shared=False,
    ),
    names=NameMap(
        router="mlp.router.gate",
        router_correction="mlp.expert_bias",
        shared_gate="mlp.shared_experts.gate_proj",
        shared_up="mlp.shared_experts.up_proj",
        shared_down="mlp.shared_experts.down_proj",
        # So that adapters have the names of transformers' modules.
        written=((".mlp.shared_mlp.", ".mlp.shared_experts."),),
    ),
)
