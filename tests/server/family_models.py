"""Tiny models of every family that has a row, in the variants that differ: name -> family and options."""

from typing import Any

_BIAS = {"attention_bias": True, "mlp_bias": True}
# For families without a head_dim of their own.
_EVEN_HEADS = {"hidden_size": 80, "head_dim": None}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 44}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
_LONG_FACTORS = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]

CASES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-biased": {"family": "llama", **_BIAS},
    "mistral-window": {"family": "mistral", "sliding_window": 9},
    "mistral-one-kv-head": {"family": "mistral", "num_key_value_heads": 1, "sliding_window": None},
    "mixtral": {"family": "mixtral", "num_local_experts": 4, "sliding_window": 11},
    "qwen2-window": {
        "family": "qwen2", "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1,
    },
    "qwen2_moe": {
        "family": "qwen2_moe", **_EXPERTS, **_EVEN_HEADS, "shared_expert_intermediate_size": 52, "mlp_only_layers": [1],
    },
    "qwen2_moe-normalized": {
        "family": "qwen2_moe", **_EXPERTS, **_EVEN_HEADS, "shared_expert_intermediate_size": 52,
        "norm_topk_prob": True, "decoder_sparse_step": 2, "qkv_bias": False,
    },
    "qwen3": {"family": "qwen3"},
    "qwen3_moe": {"family": "qwen3_moe", **_EXPERTS, "norm_topk_prob": True},
    "gemma": {"family": "gemma"},
    "gemma2": {"family": "gemma2", "sliding_window": 9, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 5.0},
    "gemma3_text": {
        "family": "gemma3_text", "sliding_window": 9, "query_pre_attn_scalar": 20, "layer_types": _LAYERS,
        "tie_word_embeddings": True,
    },
    "phi3": {"family": "phi3", **_EVEN_HEADS, "sliding_window": 30},
    "phi3-partial-longrope": {
        "family": "phi3", "hidden_size": 192, "head_dim": None, "tie_word_embeddings": True,
        "original_max_position_embeddings": 100,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
            "short_factor": _LONG_FACTORS, "long_factor": [2 * factor for factor in _LONG_FACTORS],
        },
    },
    "falcon-7b": {"family": "falcon", **_EVEN_HEADS, "ffn_hidden_size": 132},
    "falcon-40b": {
        "family": "falcon", **_EVEN_HEADS, "ffn_hidden_size": 132, "new_decoder_architecture": True, "num_kv_heads": 4,
    },
    "falcon-sequential": {
        "family": "falcon", **_EVEN_HEADS, "ffn_hidden_size": 132, "parallel_attn": False, "multi_query": False,
        "bias": True,
    },
    "gpt_neox": {"family": "gpt_neox", "hidden_size": 128, "head_dim": None},
    "gpt_neox-sequential": {
        "family": "gpt_neox", "hidden_size": 128, "head_dim": None, "use_parallel_residual": False,
        "hidden_act": "gelu_fast",
    },
    "gpt2": {"family": "gpt2", "tie_word_embeddings": True, "head_dim": None, "num_key_value_heads": None},
    "gpt2-untied": {"family": "gpt2", "n_inner": 100, "head_dim": None, "num_key_value_heads": None},
    "starcoder2": {"family": "starcoder2", "sliding_window": 30},
    "olmo2": {"family": "olmo2", **_EVEN_HEADS},
    "granite": {
        "family": "granite", **_EVEN_HEADS, **_BIAS, "attention_multiplier": 0.3, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4, "logits_scaling": 2.5,
    },
    "cohere": {"family": "cohere", **_EVEN_HEADS, "logit_scale": 0.5},
    "cohere-normed": {"family": "cohere", **_EVEN_HEADS, "use_qk_norm": True, "tie_word_embeddings": True},
    "cohere2": {"family": "cohere2", **_EVEN_HEADS, "sliding_window": 9, "layer_types": _LAYERS},
    "stablelm": {"family": "stablelm", "hidden_size": 128, "head_dim": None, "use_qkv_bias": True},
    "stablelm-parallel": {
        "family": "stablelm", "hidden_size": 128, "head_dim": None, "use_parallel_residual": True, "qk_layernorm": True,
    },
    "internlm2": {"family": "internlm2"},
    "internlm3": {"family": "internlm3", **_BIAS},
    "gpt_oss": {"family": "gpt_oss", "num_local_experts": 4, "sliding_window": 9, "num_experts_per_tok": 2},
}  # fmt: skip

# A sample of those that have no row and are computed by the code of transformers.
BORROWED: dict[str, dict[str, Any]] = {
    "olmo": _EVEN_HEADS,
    "olmo3": {**_EVEN_HEADS, "sliding_window": 9},
    "flex_olmo": {**_EVEN_HEADS, "num_experts": 6},
    "phi": {"hidden_size": 128, "head_dim": None},
    "phimoe": {**_EVEN_HEADS, "sliding_window": None},
    "glm": {},
    "glm4": {},
    "smollm3": _EVEN_HEADS,
    "ernie4_5": {},
    "nemotron": {"hidden_size": 80, "head_dim": 10},
    "exaone4": {**_EVEN_HEADS, "sliding_window": 9},
    "arcee": {},
    "seed_oss": {},
    "apertus": _EVEN_HEADS,
    "granitemoe": {**_EVEN_HEADS, "num_local_experts": 4},
    "hunyuan_v1_dense": {},
    "ministral": {"sliding_window": 9},
    "gpt_bigcode": _EVEN_HEADS,
    "deepseek_v3": {
        "head_dim": None, "num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
        "topk_group": 1, "moe_intermediate_size": 44, "first_k_dense_replace": 1,
    },
}  # fmt: skip
