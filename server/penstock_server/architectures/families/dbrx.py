"""DBRX: sixteen experts in flat tensors, and limits of queries, keys and values."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap
from penstock_server.architectures.nested import lifted

_ATTENTION = {"num_key_value_heads": "kv_n_heads", "clip_qkv": "clip_qkv", "rope_theta": "rope_theta"}
_NORM_OF_WEIGHTS = "moe_normalize_expert_weights"
_FEED_FORWARD = {
    "intermediate_size": "ffn_hidden_size",
    "num_experts": "moe_num_experts",
    "num_experts_per_tok": "moe_top_k",
    _NORM_OF_WEIGHTS: _NORM_OF_WEIGHTS,
}


def _with_parts(family: Family, raw: dict[str, Any]) -> Family:
    """Attention and feed-forward have objects of their own. Without a norm, weights stay as they are."""
    family = lifted(family, raw, "attn_config", _ATTENTION)
    family = lifted(family, raw, "ffn_config", _FEED_FORWARD)
    family = lifted(family, raw, "ffn_config.ffn_act_fn", {"hidden_act": "name"})
    inner = raw.get("ffn_config")
    is_plain = isinstance(inner, dict) and inner.get(_NORM_OF_WEIGHTS, 1.0) is None
    return replace(family, experts=replace(_EXPERTS, normalized=False)) if is_plain else family


_EXPERTS = Experts(size="intermediate_size", normalized=True, flat=True)
DBRX = Family(
    "dbrx",
    "DBRX",
    aliases={
        "hidden_size": "d_model",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "max_position_embeddings": "max_seq_len",
        # It has none; what is written elsewhere means nothing.
        "head_dim": "",
    },
    defaults={
        "num_key_value_heads": 1,
        "intermediate_size": 3584,
        "num_experts": 4,
        "num_experts_per_tok": 1,
    },
    # Weights are divided by their sum.
    fixed={_NORM_OF_WEIGHTS: 1, "tie_word_embeddings": False},
    norm_centered=True,
    # Whatever is written.
    norm_eps="",
    qkv_limit="clip_qkv",
    experts=_EXPERTS,
    names=NameMap(
        embedding="transformer.wte",
        final_norm="transformer.norm_f",
        layer="transformer.blocks.{}.",
        attention_input_norm="norm_attn_norm.norm_1",
        mlp_input_norm="norm_attn_norm.norm_2",
        qkv="norm_attn_norm.attn.Wqkv",
        output="norm_attn_norm.attn.out_proj",
        router="ffn.router.layer",
        expert_gate="ffn.experts.mlp.w1",
        expert_up="ffn.experts.mlp.v1",
        expert_down="ffn.experts.mlp.w2",
    ),
    adapt=_with_parts,
)
