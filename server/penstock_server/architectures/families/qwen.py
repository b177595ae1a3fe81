"""Qwen2, Qwen2.5 and Qwen3, dense and with experts; Mellum 2, whose layers are of two kinds."""

from dataclasses import replace

from penstock_server.architectures.family import Experts, Family, Windows

_UPPER_LAYERS = Windows(first_key="max_window_layers", switch_key="use_sliding_window")

QWEN2 = Family("qwen2", "Qwen2, Qwen2.5", qkv_bias=True, windows=_UPPER_LAYERS)
QWEN2_MOE = Family(
    "qwen2_moe",
    "Qwen1.5-MoE, Qwen2-MoE",
    defaults={"qkv_bias": True},
    qkv_bias="qkv_bias",
    windows=Windows(full_every=2, end_key="max_window_layers", switch_key="use_sliding_window"),
    experts=Experts(shared_size="shared_expert_intermediate_size"),
)
QWEN3 = Family(
    "qwen3",
    "Qwen3",
    defaults={"head_dim": 128},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    windows=_UPPER_LAYERS,
)
QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3-MoE",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    windows=Windows(switch_key="use_sliding_window"),
    experts=Experts(),
)
MELLUM = replace(
    QWEN3_MOE,
    model_type="mellum",
    title="Mellum 2",
    defaults={
        "head_dim": 128,
        "norm_topk_prob": True,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
    },
    # The layers named in the file have windows; without names, none has.
    windows=Windows(full_every=1),
    local_rope=("", 10000.0),
)
