"""Gemma 1, 2 and 3 (text): scaled embeddings, norms around 0, and from 2 on norms on both sides of each part."""

from dataclasses import replace

from penstock_server.architectures.family import Family, NameMap, Windows

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
