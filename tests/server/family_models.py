"""Tiny models of every family that has a row, in the variants that differ: name -> family and options."""

from typing import Any

_BIAS = {"attention_bias": True, "mlp_bias": True}
# For families without a head_dim of their own. The ops in C take these sizes, and not those of the other families.
_EVEN_HEADS = {"hidden_size": 64, "head_dim": None}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 44}
_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
# The options of Gemma 4.
_SEEN = {
    "sliding_window": 9, "layer_types": [*_LAYERS[:1], *_LAYERS[:2]], "tie_word_embeddings": True,
    "vocab_size_per_layer_input": 301,
}  # fmt: skip
_OLD_GPT = {
    "hidden_size": 128,
    "head_dim": None,
    "num_key_value_heads": None,
    "rotary_dim": 8,
    "n_inner": 132,
}
# A router of groups with a correction.
_ROUTED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 44, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.7,
}  # fmt: skip
LATENT = {
    "head_dim": None, "num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_rope_head_dim": 6,
    "qk_nope_head_dim": 10, "v_head_dim": 12,
}  # fmt: skip
# Experts have the plain size, dense layers another one.
_CHUNKED = {
    "head_dim": 18, "attention_chunk_size": 8, "num_local_experts": 4, "intermediate_size": 44,
    "intermediate_size_mlp": 132, "no_rope_layers": [1, 0, 1], "floor_scale": 4, "attn_scale": 0.3,
    "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
}  # fmt: skip
# The ops in C take these sizes.
_LATENT_IN_C = {
    **LATENT, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "q_lora_rank": 24,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 50, "mscale": 0.7,
    "mscale_all_dim": 1.0,
}  # fmt: skip
_DBRX = {
    "d_model": 64, "n_heads": 8, "n_layers": 3, "max_seq_len": 200, "hidden_size": None, "num_attention_heads": None,
    "num_hidden_layers": None, "max_position_embeddings": None, "num_key_value_heads": None, "head_dim": None,
    "intermediate_size": None,
}  # fmt: skip
_OLD = {**_EVEN_HEADS, "num_key_value_heads": None, "max_position_embeddings": None}
_LONG_FACTORS = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0]
_DELTA = {
    **_EVEN_HEADS, "head_dim": 24, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 10,
    "linear_value_head_dim": 6, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_ROW_DELTA = {
    "max_position_embeddings": None, "model_max_length": 200, "linear_num_heads": 8, "num_experts": 8,
    "num_experts_per_token": 3, "num_expert_group": 4, "topk_group": 2, "moe_intermediate_size": 44,
    "routed_scaling_factor": 1.7, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
# One group of numbers for all heads: ranks share it.
_MAMBA = {
    **_EVEN_HEADS, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 12, "mamba_d_conv": 3,
    "mamba_chunk_size": 16,
}  # fmt: skip
_SELECTIVE = {
    "hidden_size": 80,
    "state_size": 12,
    "conv_kernel": 3,
    "expand": 2,
    "time_step_rank": 6,
    "num_attention_heads": None,
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": None,
    "head_dim": None,
}
# Without keys of their own; `model_max_length` alone means ALiBi, here with heads that are no power of two.
_PACKED = {"hidden_size": 80, "head_dim": None, "num_key_value_heads": None}
_SLOPES = {
    "hidden_size": 96, "num_attention_heads": 12, "max_position_embeddings": None, "model_max_length": 200,
}  # fmt: skip
# Three positions of a token share the numbers of a head; of text they are one.
_THREE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_MIXED_THREE = {**_THREE, "mrope_interleaved": True}
_HYBRID_LAYERS = ["linear_attention", "full_attention", "linear_attention"]

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
    "gemma4_text": {
        "family": "gemma4_text", **_SEEN, "num_hidden_layers": 6, "layer_types": 3 * _LAYERS[:2],
        "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 12, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True, "final_logit_softcapping": 5.0,
    },
    "gemma4_text-keys-as-values": {
        "family": "gemma4_text", **_SEEN, "global_head_dim": 40, "num_global_key_value_heads": 2,
        "attention_k_eq_v": True, "hidden_size_per_layer_input": 0,
    },
    "gemma4_text-experts": {
        "family": "gemma4_text", **_SEEN, **_EXPERTS, "num_experts_per_tok": None, "top_k_experts": 2,
        "global_head_dim": 24, "enable_moe_block": True, "hidden_size_per_layer_input": 0,
    },
    "gemma4_unified_text": {
        "family": "gemma4_unified_text", **_SEEN, "vocab_size_per_layer_input": None, "global_head_dim": 24,
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
    "phimoe": {
        "family": "phimoe", **_EVEN_HEADS, "num_local_experts": 6, "attention_bias": True, "lm_head_bias": True,
        "router_jitter_noise": 0.2, "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 150,
            "short_mscale": 1.2, "long_mscale": 1.3, "short_factor": _LONG_FACTORS[:4],
            "long_factor": _LONG_FACTORS[4:8],
        },
    },
    "phimoe-window": {"family": "phimoe", **_EVEN_HEADS, "num_local_experts": 4, "sliding_window": 9},
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
    "apertus": {"family": "apertus", **_EVEN_HEADS},
    "arcee": {"family": "arcee", **_BIAS, **_EVEN_HEADS},
    "codegen": {"family": "codegen", **_OLD_GPT},
    "ernie4_5": {"family": "ernie4_5", "use_bias": True},
    "exaone4": {"family": "exaone4", **_EVEN_HEADS, "sliding_window": 9, "layer_types": _LAYERS},
    "exaone4-full": {"family": "exaone4", **_EVEN_HEADS, "sliding_window": None, "tie_word_embeddings": True},
    "glm": {"family": "glm", "head_dim": 20},
    "glm4": {"family": "glm4", "head_dim": 20, "attention_bias": True},
    "gptj": {"family": "gptj", **_OLD_GPT},
    "gpt_bigcode": {"family": "gpt_bigcode", **_OLD_GPT, "rotary_dim": None},
    "gpt_bigcode-multi-head": {"family": "gpt_bigcode", **_OLD_GPT, "rotary_dim": None, "multi_query": False},
    "hunyuan_v1_dense": {
        "family": "hunyuan_v1_dense",
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 9.0},
    },
    "ministral3": {
        "family": "ministral3", "rope_parameters": {**_YARN, "mscale": 1.0, "llama_4_scaling_beta": 0.3,
                                                    "original_max_position_embeddings": 8},
    },
    "mistral4": {"family": "mistral4", **LATENT, **_ROUTED, "rope_parameters": {
        **_YARN, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 8,
    }},
    "ministral": {"family": "ministral", "sliding_window": 9, "layer_types": _LAYERS},
    "nemotron": {"family": "nemotron", **_BIAS, "hidden_size": 80, "head_dim": 12},
    "olmo3": {"family": "olmo3", **_EVEN_HEADS, "sliding_window": 9, "layer_types": _LAYERS},
    "opt": {"family": "opt", **_EVEN_HEADS, "num_key_value_heads": None, "ffn_dim": 132, "tie_word_embeddings": True},
    "persimmon": {"family": "persimmon", "hidden_size": 128, "head_dim": None, "num_key_value_heads": None},
    "phi": {"family": "phi", "hidden_size": 128, "head_dim": None},
    "phi-normed": {"family": "phi", "hidden_size": 128, "head_dim": None, "qk_layernorm": True},
    "seed_oss": {"family": "seed_oss", "attention_out_bias": True},
    "dots1": {"family": "dots1", **_ROUTED, "head_dim": 20, "use_sliding_window": True, "sliding_window": 9,
              "max_window_layers": 1},
    "ernie4_5_moe": {
        "family": "ernie4_5_moe", "head_dim": 20, "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 44,
        "moe_num_shared_experts": 1, "moe_layer_end_index": 1,
    },
    "flex_olmo": {"family": "flex_olmo", **_EVEN_HEADS, "num_experts": 6, "num_experts_per_tok": 2},
    "glm4_moe": {"family": "glm4_moe", **_ROUTED, "head_dim": 20, "use_qk_norm": True, "n_group": 1, "topk_group": 1},
    "granitemoe": {
        "family": "granitemoe", **_EVEN_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2,
        "attention_multiplier": 0.3,
    },
    "granitemoeshared": {
        "family": "granitemoeshared", **_EVEN_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2,
        "shared_intermediate_size": 52, "residual_multiplier": 0.4,
    },
    "hunyuan_v1_moe": {"family": "hunyuan_v1_moe", "num_experts": 4, "moe_topk": 2},
    "minimax_m2": {
        "family": "minimax_m2", "head_dim": 20, "num_local_experts": 6, "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "olmo": {"family": "olmo", **_EVEN_HEADS, "clip_qkv": 0.7},
    "olmoe": {"family": "olmoe", **_EVEN_HEADS, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "deepseek_v2": {
        "family": "deepseek_v2", **LATENT, **_ROUTED, "topk_method": "group_limited_greedy", "norm_topk_prob": False,
    },
    "deepseek_v2-lite": {
        "family": "deepseek_v2", **LATENT, **_ROUTED, "q_lora_rank": None, "norm_topk_prob": False, "n_group": 1,
        "topk_group": 1, "attention_bias": True,
    },
    "deepseek_v3": {"family": "deepseek_v3", **LATENT, **_ROUTED, "rope_parameters": _YARN},
    "deepseek_v3-halves": {"family": "deepseek_v3", **LATENT, **_ROUTED, "rope_interleave": False},
    "deepseek_v3-in-c": {"family": "deepseek_v3", **_LATENT_IN_C, **_ROUTED, "rope_parameters": _YARN},
    # With smaller ones many keys are worth exactly as little, and which of these are seen is anybody's choice.
    "deepseek_v32": {
        "family": "deepseek_v32", **LATENT, **_ROUTED, "index_n_heads": 8, "index_head_dim": 24, "index_topk": 20,
    },
    "deepseek_v32-all": {
        "family": "deepseek_v32", **_LATENT_IN_C, **_ROUTED, "index_n_heads": 8, "index_head_dim": 24,
        "index_topk": 1000,
    },
    "glm_moe_dsa": {
        "family": "glm_moe_dsa", **LATENT, **_ROUTED, "n_group": 1, "topk_group": 1, "index_n_heads": 8,
        "index_head_dim": 24, "index_topk": 20,
    },
    "glm_moe_dsa-shared": {
        "family": "glm_moe_dsa", **LATENT, **_ROUTED, "n_group": 1, "topk_group": 1, "index_n_heads": 8,
        "index_head_dim": 24, "index_topk": 20, "indexer_types": ["full", "shared", "full"],
    },
    "glm4_moe_lite": {"family": "glm4_moe_lite", **LATENT, **_ROUTED, "n_group": 1, "topk_group": 1},
    "kimi_k2": {"family": "kimi_k2", **LATENT, **_ROUTED, "n_group": 1, "topk_group": 1},
    "minicpm3": {"family": "minicpm3", **LATENT, "v_head_dim": 9, "scale_depth": 1.1, "dim_model_base": 48},
    "youtu": {"family": "youtu", **LATENT, "tie_word_embeddings": True},
    "bloom": {"family": "bloom", **_OLD, "tie_word_embeddings": True},
    "bloom-six-heads": {"family": "bloom", **_OLD, "num_attention_heads": 6, "hidden_size": 72},
    "falcon-rw": {
        "family": "falcon", **_EVEN_HEADS, "ffn_hidden_size": 132, "parallel_attn": False, "multi_query": False,
        "bias": True, "alibi": True,
    },
    "mpt": {"family": "mpt", **_OLD, "max_seq_len": 200, "n_heads": 6, "n_layers": 3, "d_model": 72,
            "num_attention_heads": None, "num_hidden_layers": None, "hidden_size": None, "tie_word_embeddings": True},
    "mpt-limited": {"family": "mpt", **_OLD, "max_seq_len": 200, "n_heads": 8, "n_layers": 2, "d_model": 64,
                    "attn_config": {"clip_qkv": 0.7}, "num_attention_heads": None, "num_hidden_layers": None,
                    "hidden_size": None},
    "dbrx": {"family": "dbrx", **_DBRX, "attn_config": {"kv_n_heads": 4, "clip_qkv": 0.9, "rope_theta": 10000.0},
             "ffn_config": {"ffn_hidden_size": 44, "moe_num_experts": 6, "moe_top_k": 3}},
    "dbrx-plain-weights": {
        "family": "dbrx", **_DBRX, "attn_config": {"kv_n_heads": 2, "clip_qkv": 2, "rope_theta": 10000.0},
        "ffn_config": {
            "ffn_hidden_size": 44, "moe_num_experts": 4, "moe_top_k": 2, "moe_normalize_expert_weights": None,
            "ffn_act_fn": {"name": "gelu"},
        },
    },
    "qwen3_next": {"family": "qwen3_next", **_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 52},
    "qwen3_next-dense-layer": {
        "family": "qwen3_next", **_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 52, "mlp_only_layers": [0],
        "attention_bias": True, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 2,
    },
    "qwen3_5_text": {"family": "qwen3_5_text", **_DELTA},
    "qwen3_5_moe_text": {"family": "qwen3_5_moe_text", **_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 52},
    "kimi_linear": {"family": "kimi_linear", **LATENT, **_ROW_DELTA, "linear_head_dim": 10},
    "kimi_linear-in-c": {
        "family": "kimi_linear", **_LATENT_IN_C, **_ROW_DELTA, "linear_head_dim": 12, "q_lora_rank": None,
        "linear_conv_kernel_dim": 3, "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    "bamba": {"family": "bamba", **_MAMBA, "hidden_size": 128, "mamba_d_head": 32, "attn_layer_indices": [1],
              "mamba_proj_bias": True},
    "granitemoehybrid": {
        "family": "granitemoehybrid", **_MAMBA, "layer_types": _HYBRID_LAYERS, "shared_intermediate_size": 52,
        "num_local_experts": 4, "num_experts_per_tok": 2, "attention_multiplier": 0.3, "residual_multiplier": 0.4,
        "mamba_n_groups": 4,
    },
    "granitemoehybrid-dense": {
        "family": "granitemoehybrid", **_MAMBA, "layer_types": _HYBRID_LAYERS, "shared_intermediate_size": 52,
        "num_local_experts": 0, "position_embedding_type": "rope", "attention_multiplier": 0.3,
    },
    "mamba2": {
        "family": "mamba2", "hidden_size": 80, "num_heads": 8, "head_dim": 20, "n_groups": 2, "state_size": 12,
        "time_step_limit": [0.01, 1.5], "chunk_size": 16, "num_attention_heads": None, "num_key_value_heads": None,
        "intermediate_size": None, "max_position_embeddings": None,
    },
    "nemotron_h": {
        "family": "nemotron_h", "hidden_size": 80, "head_dim": 20, "mamba_num_heads": 8, "mamba_head_dim": 14,
        "n_groups": 2, "ssm_state_size": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 1.7, "moe_intermediate_size": 44, "num_hidden_layers": None,
        "moe_shared_expert_intermediate_size": 52, "time_step_min": 0.5, "chunk_size": 16,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    },
    "falcon_h1": {"family": "falcon_h1", **_MAMBA, "mamba_d_ssm": 128},
    "falcon_h1-factors": {
        "family": "falcon_h1", **_MAMBA, "mamba_d_ssm": 128, "mamba_n_groups": 2, "mamba_rms_norm": True,
        "projectors_bias": True, "attention_bias": True, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.7,
        "key_multiplier": 0.6, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8,
        "mlp_multipliers": [0.7, 1.2], "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "ssm_in_multiplier": 1.4,
        "ssm_out_multiplier": 0.6, "mamba_norm_before_gate": False,
    },
    "mamba": {"family": "mamba", **_SELECTIVE, "use_bias": True},
    "mamba-odd": {"family": "mamba", **_SELECTIVE, "hidden_size": 44, "state_size": 6, "tie_word_embeddings": False},
    "falcon_mamba": {"family": "falcon_mamba", **_SELECTIVE, "mixer_rms_eps": 1e-3},
    "jamba": {
        "family": "jamba", **_EVEN_HEADS, "mamba_d_state": 12, "mamba_d_conv": 3, "attn_layer_period": 2,
        "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0, "num_experts": 4,
        "num_experts_per_tok": 2, "mamba_dt_rank": 7,
    },
    "lfm2": {"family": "lfm2", **_EVEN_HEADS, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2-bias": {
        "family": "lfm2", **_EVEN_HEADS, "layer_types": ["conv", "full_attention", "conv"], "conv_bias": True,
        "block_auto_adjust_ff_dim": False, "conv_L_cache": 4,
    },
    "lfm2_moe": {
        "family": "lfm2_moe", **_EVEN_HEADS, **_EXPERTS, "layer_types": ["conv", "full_attention", "conv"],
        "num_dense_layers": 1, "routed_scaling_factor": 1.5,
    },
    "gpt_neo": {
        "family": "gpt_neo", **_EVEN_HEADS, "num_key_value_heads": None, "num_attention_heads": None, "num_heads": 8,
        "num_hidden_layers": None, "num_layers": 3, "window_size": 9, "intermediate_size": 140,
        "attention_types": [[["global", "local"], 1], [["local"], 1]],
    },
    "baichuan": {"family": "baichuan", **_PACKED},
    "baichuan-13b": {"family": "baichuan", **_PACKED, **_SLOPES},
    "baichuan2": {"family": "baichuan", **_PACKED, "vocab_size": 125_696},
    "baichuan2-13b": {"family": "baichuan", **_PACKED, **_SLOPES, "vocab_size": 125_696},
    "xverse": {"family": "xverse", **_EVEN_HEADS},
    "smollm3": {"family": "smollm3", **_EVEN_HEADS, "no_rope_layers": [1, 0, 1]},
    "llama4_text": {"family": "llama4_text", **_CHUNKED},
    "qwen2_vl_text": {"family": "qwen2_vl_text", "hidden_size": 64, "head_dim": None, "rope_parameters": _THREE},
    "qwen2_5_vl_text": {"family": "qwen2_5_vl_text", "hidden_size": 64, "head_dim": None, "rope_parameters": _THREE},
    "qwen3_vl_text": {"family": "qwen3_vl_text", "head_dim": 8, "rope_parameters": _MIXED_THREE},
    "qwen3_vl_moe_text": {
        "family": "qwen3_vl_moe_text", **_EXPERTS, "head_dim": 8, "rope_parameters": _MIXED_THREE,
    },
    "glm4v_text": {
        "family": "glm4v_text", "hidden_size": 128, "head_dim": None,
        "rope_parameters": {**_THREE, "partial_rotary_factor": 0.5},
    },
    "glm4v_moe_text": {
        "family": "glm4v_moe_text", **_ROUTED, "head_dim": 16, "n_group": 1, "topk_group": 1,
        "rope_parameters": {**_THREE, "partial_rotary_factor": 0.5},
    },
    "llama4_text-dense-layer": {
        "family": "llama4_text", **_CHUNKED, "interleave_moe_layer_step": 2, "use_qk_norm": False, "head_dim": 16,
        "num_experts_per_tok": 2, "attention_bias": True,
    },
    "llama4_text-flat": {"family": "llama4_text", **_CHUNKED, "attn_temperature_tuning": False, "layer_types": None},
    "afmoe": {
        "family": "afmoe", **_EXPERTS, "head_dim": 20, "num_dense_layers": 1, "sliding_window": 9,
        "num_hidden_layers": 4, "num_shared_experts": 1, "route_scale": 1.7,
    },
    "afmoe-scaled": {
        "family": "afmoe", **_EXPERTS, "head_dim": 20, "sliding_window": 9, "layer_types": _LAYERS, "mup_enabled": True,
    },
    "granite_swa": {
        "family": "granite_swa", **_EVEN_HEADS, "sliding_window": 9, "num_hidden_layers": 5,
        "layer_rope_theta": [0, 500.0, 10000, 500.0, 0], "attention_multiplier": 0.3, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4, "logits_scaling": 2.5, **_BIAS,
    },
    "granitemoe_swa": {
        "family": "granitemoe_swa", **_EVEN_HEADS, "sliding_window": 9, "num_local_experts": 4,
        "num_experts_per_tok": 2, "shared_intermediate_size": 52, "attention_multiplier": 0.3,
    },
    "granitemoe_swa-no-rotation": {
        "family": "granitemoe_swa", **_EVEN_HEADS, "sliding_window": 9, "num_local_experts": 4,
        "num_experts_per_tok": 2, "layer_types": _LAYERS, "layer_rope_theta": [0, 0, 0],
    },
    "nanochat": {"family": "nanochat", **_EVEN_HEADS, "num_key_value_heads": 4},
    "aria_text": {
        "family": "aria_text", **_EVEN_HEADS, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 2,
        "intermediate_size": 44, "attention_bias": True,
    },
    "cohere2_moe": {
        "family": "cohere2_moe", "num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 44, "head_dim": 20,
        "sliding_window": 9, "num_shared_experts": 2, "num_hidden_layers": 6, "first_k_dense_replace": 1,
        "logit_scale": 0.5, "attention_bias": True,
    },
    "cohere2_moe-summed": {
        "family": "cohere2_moe", "num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 44, "head_dim": 20,
        "sliding_window": 9, "num_shared_experts": 1, "num_hidden_layers": 4, "prefix_dense_intermediate_size": 132,
        "prefix_dense_sliding_window_pattern": 2, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        "expert_selection_fn": "sigmoid", "norm_topk_prob": False, "rms_norm_eps": 1e-6, "logit_scale": 0.5,
        "shared_expert_combination_strategy": "sum", "tie_word_embeddings": True,
    },
    "cwm": {"family": "cwm", "head_dim": 20, "sliding_window": 9, "num_hidden_layers": 5},
    "exaone": {"family": "exaone", **_EVEN_HEADS, **_BIAS},
    "exaone_moe": {
        "family": "exaone_moe", **_EXPERTS, **_EVEN_HEADS, "sliding_window": 9, "num_hidden_layers": 4,
        "num_shared_experts": 2,
    },
    "exaone_moe-full": {
        "family": "exaone_moe", **_EXPERTS, **_EVEN_HEADS, "num_experts": 8, "n_group": 4, "topk_group": 2,
        "mlp_layer_types": ["sparse", "dense", "sparse"], "layer_types": ["full_attention"] * 3,
    },
    "helium": {"family": "helium", "hidden_size": 80, "head_dim": 10, **_BIAS},
    "hyperclovax": {
        "family": "hyperclovax", **_EVEN_HEADS, "attention_multiplier": 0.3, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4, "logits_scaling": 0.7,
    },
    "hyperclovax-plain": {"family": "hyperclovax", **_EVEN_HEADS, **_BIAS, "use_post_norm": False},
    "hy_v3": {"family": "hy_v3", **_EXPERTS, "head_dim": 20, "num_shared_experts": 2, "attention_bias": True},
    "iquestcoder": {"family": "iquestcoder", "head_dim": 20, "attention_bias": True},
    "jais2": {"family": "jais2", **_EVEN_HEADS, "num_key_value_heads": None},
    "mellum": {
        "family": "mellum", **_EXPERTS, "head_dim": 20, "sliding_window": 9, "layer_types": _LAYERS,
        "mlp_layer_types": ["sparse", "dense", "sparse"],
    },
    "sarvam_moe": {"family": "sarvam_moe", **_ROUTED, "head_dim": 20, "n_group": 1, "topk_group": 1},
    "solar_open": {"family": "solar_open", **_ROUTED, "head_dim": 20, "attention_bias": True},
    "vaultgemma": {"family": "vaultgemma", "head_dim": 20, "sliding_window": 9, "query_pre_attn_scalar": 20},
}  # fmt: skip

# Families that transformers has under another model_type.
RENAMED = {"kimi_k2": "deepseek_v3", "xverse": "llama"}

# Families whose folders are made of those of another, in modules of their own.
CONVERTED = ("baichuan", "internlm2")
# Families that are the text part of a model that also sees.
TEXT_PARTS = (
    "glm4v_moe_text",
    "glm4v_text",
    "qwen2_5_vl_text",
    "qwen2_vl_text",
    "qwen3_vl_moe_text",
    "qwen3_vl_text",
)

# A sample of those that have no row and are computed by the code of transformers.
BORROWED: dict[str, dict[str, Any]] = {
    "apertus1p5_text": _EVEN_HEADS,
    "axk1": {**LATENT, **_ROUTED},
    "beam": _EVEN_HEADS,
    "biogpt": {**_EVEN_HEADS, "num_key_value_heads": None},
    "bitnet": _EVEN_HEADS,
    "cohere_compass_text": {
        **_EVEN_HEADS, "sliding_window": 9,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
        },
    },
    "ctrl": {**_EVEN_HEADS, "num_key_value_heads": None},
    "flint": {**_EXPERTS, **_EVEN_HEADS, "sliding_window": 9},
    "jetmoe": {**_EVEN_HEADS, "num_local_experts": 4},
    "kolibri1": {**_EXPERTS, **_EVEN_HEADS},
    "laguna": {**_EXPERTS, **_EVEN_HEADS, "sliding_window": 9},
    "longcat_flash": {**_EVEN_HEADS, "num_key_value_heads": None},
    "minimax_m3_vl_text": _EVEN_HEADS,
    "modernbert-decoder": {**_EVEN_HEADS, "num_key_value_heads": None},
    "sarvam_mla": {**_EVEN_HEADS, "num_key_value_heads": None},
}  # fmt: skip

# A sample of those that transformers computes over its own caches: chunks and positions, an index, states.
KEPT: dict[str, dict[str, Any]] = {
    "diffllama": _EVEN_HEADS,
    "minimax": {**_EVEN_HEADS, "num_local_experts": 4, "layer_types": _HYBRID_LAYERS},
}  # fmt: skip
