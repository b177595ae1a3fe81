"""Gemma 1, 2 and 3 (text): scaled embeddings, norms around 0, and from 2 on norms on both sides of each part."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap, Windows

_SANDWICH = NameMap(
    attention_output_norm="post_attention_layernorm",
    mlp_input_norm="pre_feedforward_layernorm",
    mlp_output_norm="post_feedforward_layernorm",
)
_TIED = {"tie_word_embeddings": True, "head_dim": 256}

GEMMA = Family(
    "gemma",
    "Gemma 1, CodeGemma",
    defaults={**_TIED, "hidden_activation": "gelu_pytorch_tanh"},
    fixed={"use_bidirectional_attention": False},
    norm_weight_offset=1.0,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    activation="hidden_activation",
    # The first releases said so and meant the approximation.
    activation_names={"gelu": "gelu_pytorch_tanh"},
    scales_embedding_by_size=True,
)
GEMMA2 = replace(
    GEMMA,
    model_type="gemma2",
    title="Gemma 2",
    defaults={
        **GEMMA.defaults,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
    },
    score_divisor_key="query_pre_attn_scalar",
    attention_soft_cap="attn_logit_softcapping",
    logit_soft_cap="final_logit_softcapping",
    windows=Windows(full_every=2),
    names=_SANDWICH,
)
GEMMA3_TEXT = replace(
    GEMMA2,
    model_type="gemma3_text",
    title="Gemma 3 (text)",
    defaults={**GEMMA.defaults, "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1e6},
    qk_norm="head",
    windows=Windows(full_every=6),
    local_rope=("rope_local_base_freq", 10000.0),
)


def _as_transformers_reads(family: Family, raw: dict[str, Any]) -> Family:
    """Tokens of images may see each other in both directions; where all tokens do, it is no decoder. The last layer
    sees everything, also where no kinds are listed."""
    fixed: dict[str, Any] = {}
    if raw.get("use_bidirectional_attention") != "vision":
        fixed["use_bidirectional_attention"] = None
    kinds, num_layers = raw.get("layer_types"), raw.get("num_hidden_layers")
    if isinstance(kinds, list) and kinds:
        fixed["layer_types"] = [*kinds[:-1], "full_attention"]
    defaults = family.defaults
    if kinds is None and isinstance(num_layers, int) and 0 < num_layers < 10**4:
        regular = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(num_layers)]
        defaults = {**defaults, "layer_types": [*regular[:-1], "full_attention"]}
    return replace(family, fixed=fixed, defaults=defaults)


GEMMA4_TEXT = replace(
    GEMMA3_TEXT,
    model_type="gemma4_text",
    title="Gemma 4 (text)",
    defaults={
        **_TIED,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "rope_theta": 1e6,
        "max_position_embeddings": 131_072,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "norm_topk_prob": True,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1e6,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    aliases={"num_experts_per_tok": "top_k_experts"},
    fixed={},
    norm_weight_offset=0.0,
    score_divisor_key="",
    attention_scale=1.0,
    attention_soft_cap=None,
    full_heads=("num_global_key_value_heads", "global_head_dim"),
    full_values_are_keys="attention_k_eq_v",
    value_norm=True,
    kv_readers=("num_kv_shared_layers", "use_double_wide_mlp"),
    layer_inputs=("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    scales_layers=True,
    experts=Experts(beside_dense=True, switch_key="enable_moe_block"),
    names=replace(
        _SANDWICH,
        router="router.proj",
        router_scale="router.scale",
        expert_scale="router.per_expert_scale",
        experts_gate_up="experts.gate_up_proj",
        experts_down="experts.down_proj",
        dense_output_norm="post_feedforward_layernorm_1",
        experts_input_norm="pre_feedforward_layernorm_2",
        experts_output_norm="post_feedforward_layernorm_2",
    ),
    adapt=_as_transformers_reads,
)
GEMMA4_UNIFIED_TEXT = replace(
    GEMMA4_TEXT,
    model_type="gemma4_unified_text",
    title="Gemma 4 unified (text)",
    defaults={**GEMMA4_TEXT.defaults, "sliding_window": 1024, "max_position_embeddings": 262_144},
    layer_inputs=None,
    experts=None,
)
VAULTGEMMA = replace(
    GEMMA2,
    model_type="vaultgemma",
    title="VaultGemma 1B",
    defaults={**GEMMA2.defaults, "max_position_embeddings": 8192},
    names=NameMap(mlp_input_norm="pre_feedforward_layernorm"),
)
