"""LFM2: short convolutions between gates, some layers of attention, and experts in the larger models."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap, Recurrent

_NAMES = NameMap(
    final_norm="model.embedding_norm",
    attention_input_norm="operator_norm",
    mlp_input_norm="ffn_norm",
    qkv="",
    output="self_attn.out_proj",
    query_norm="self_attn.q_layernorm",
    key_norm="self_attn.k_layernorm",
    gate_up="",
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
    router="feed_forward.gate",
    router_correction="feed_forward.expert_bias",
    experts_gate_up="feed_forward.experts.gate_up_proj",
    experts_down="feed_forward.experts.down_proj",
    expert_gate="feed_forward.experts.{}.w1",
    expert_up="feed_forward.experts.{}.w3",
    expert_down="feed_forward.experts.{}.w2",
    recurrent="conv.",
)


def _with_sizes(family: Family, raw: dict[str, Any]) -> Family:
    """Which layers attend may be told by numbers, and the size of feed-forward layers by what it is made of."""
    defaults: dict[str, Any] = dict(family.defaults)
    num_layers, listed = raw.get("num_hidden_layers"), raw.get("full_attn_idxs")
    if isinstance(num_layers, int) and isinstance(listed, list) and 0 < num_layers < 10**4:
        defaults["layer_types"] = [
            "full_attention" if layer in listed else "conv" for layer in range(num_layers)
        ]
    size = raw.get("block_ff_dim") or raw.get("intermediate_size")
    factor, multiple = raw.get("block_ffn_dim_multiplier", 1.0), raw.get("block_multiple_of", 256)
    is_plain = raw.get("block_auto_adjust_ff_dim", True) is not True
    if is_plain or not isinstance(size, int) or not isinstance(multiple, int) or multiple < 1:
        return replace(family, defaults=defaults)
    made = int(2 * size / 3)
    made = int(factor * made) if isinstance(factor, int | float) else made
    return replace(
        family,
        aliases={**family.aliases, "intermediate_size": ""},
        defaults={**defaults, "intermediate_size": -(-made // multiple) * multiple},
    )


LFM2 = Family(
    "lfm2",
    "LFM2",
    defaults={"tie_word_embeddings": True, "norm_eps": 1e-5, "rope_theta": 1e6, "conv_L_cache": 3,
              "max_position_embeddings": 128000},
    norm_eps="norm_eps",
    qk_norm="head",
    recurrent=Recurrent("short_conv", usual_kind="conv"),
    names=_NAMES,
    adapt=_with_sizes,
)  # fmt: skip


def _without_correction(family: Family, raw: dict[str, Any]) -> Family:
    """The choice of experts may go uncorrected."""
    if raw.get("use_expert_bias", True) is True or family.experts is None:
        return family
    return replace(family, experts=replace(family.experts, correction_dims=0))


LFM2_MOE = replace(
    LFM2,
    model_type="lfm2_moe",
    title="LFM2 with experts",
    defaults={**LFM2.defaults, "num_dense_layers": 2, "norm_topk_prob": True},
    experts=Experts(
        sigmoid=True, correction_dims=1, scale="routed_scaling_factor", first_layer_key="num_dense_layers"
    ),
    names=replace(_NAMES),
    adapt=_without_correction,
)
