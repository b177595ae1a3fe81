"""DeepSeek V2 and V3 and what is built like them: attention over latents, with experts or without."""

import math
from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.shared_experts import CORRECTED, SHARED_NAMES
from penstock_server.architectures.family import Experts, Family


def _with_groups(family: Family, raw: dict[str, Any]) -> Family:
    """V2 Lite chooses among all experts, whatever numbers of groups are written."""
    if raw.get("topk_method") != "group_limited_greedy" or family.experts is None:
        return family
    return replace(family, experts=replace(family.experts, groups=("n_group", "topk_group")))


DEEPSEEK_V2 = Family(
    "deepseek_v2",
    "DeepSeek-V2, V2-Lite, V2.5",
    aliases={"num_experts": "n_routed_experts"},
    defaults={"n_shared_experts": 2},
    fixed={"norm_topk_prob": False, "moe_layer_freq": 1, "mlp_bias": False, "scoring_func": "softmax"},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    latent=True,
    interleaved_rope=True,
    experts=Experts(
        normalized=False,
        wide_router=True,
        scale="routed_scaling_factor",
        first_layer_key="first_k_dense_replace",
        shared_count="n_shared_experts",
        gates_shared=False,
    ),
    names=SHARED_NAMES,
    adapt=_with_groups,
)
DEEPSEEK_V3 = replace(
    DEEPSEEK_V2,
    model_type="deepseek_v3",
    title="DeepSeek-V3, R1, V3.1",
    defaults={
        "rope_interleave": True,
        "norm_topk_prob": True,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
    },
    fixed={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    interleaved_rope="rope_interleave",
    experts=CORRECTED,
    adapt=None,
)
KIMI_K2 = replace(DEEPSEEK_V3, model_type="kimi_k2", title="Kimi K2")
DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    model_type="deepseek_v32",
    title="DeepSeek-V3.2",
    indexed=True,
    defaults={
        **DEEPSEEK_V3.defaults,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
        "max_position_embeddings": 163840,
    },
)
GLM_MOE_DSA = replace(
    DEEPSEEK_V32,
    model_type="glm_moe_dsa",
    title="GLM-5",
    interleaved_index=True,
    defaults={
        **DEEPSEEK_V32.defaults,
        "rms_norm_eps": 1e-5,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
        "max_position_embeddings": 202752,
    },
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    model_type="glm4_moe_lite",
    title="GLM-4.7-Flash",
    defaults={
        "rope_interleave": True,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-5,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.8,
        "max_position_embeddings": 202752,
    },
)


def _with_scales(family: Family, raw: dict[str, Any]) -> Family:
    """Factors that follow from the number of layers, and from the size of the model that they were found with."""
    numbers = [raw.get(key) for key in ("scale_depth", "num_hidden_layers", "dim_model_base", "hidden_size")]
    found = [number for number in numbers if isinstance(number, int | float) and number > 0]
    if len(found) < len(numbers):
        return family
    depth, num_layers, base, size = found
    return replace(family, residual_multiplier=depth / math.sqrt(num_layers), logit_scale=base / size)


MINICPM3 = Family(
    "minicpm3",
    "MiniCPM 3",
    defaults={"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "scale_emb": 12},
    fixed={"mlp_bias": False},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    latent=True,
    embedding_scale="scale_emb",
    adapt=_with_scales,
)
YOUTU = Family(
    "youtu",
    "Youtu-LLM",
    defaults={"tie_word_embeddings": True, "rope_interleave": True, "max_position_embeddings": 131072},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    latent=True,
    interleaved_rope="rope_interleave",
)
