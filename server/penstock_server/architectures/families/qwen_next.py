"""Qwen3-Next and Qwen3.5: three layers of the gated delta rule for each one of attention, whose heads have gates."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap, Recurrent


def _with_layers(family: Family, raw: dict[str, Any]) -> Family:
    """Without a list, every n-th layer attends."""
    num_layers, interval = raw.get("num_hidden_layers"), raw.get("full_attention_interval", 4)
    if (
        not isinstance(num_layers, int)
        or not isinstance(interval, int)
        or not 0 < num_layers < 10**4 > interval > 0
    ):
        return family
    kinds = [
        "linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(num_layers)
    ]
    return replace(family, defaults={**family.defaults, "layer_types": kinds})


QWEN3_NEXT = Family(
    "qwen3_next",
    "Qwen3-Next",
    names=NameMap(mtp="mtp."),
    defaults={
        "head_dim": 256,
        "partial_rotary_factor": 0.25,
        "norm_topk_prob": True,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "max_position_embeddings": 32768,
    },
    fixed={"hidden_act": "silu"},
    norm_weight_offset=1.0,
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    gated_attention=True,
    recurrent=Recurrent("delta"),
    experts=Experts(shared_size="shared_expert_intermediate_size"),
    adapt=_with_layers,
)
QWEN3_5_MOE = replace(
    QWEN3_NEXT,
    model_type="qwen3_5_moe_text",
    title="Qwen3.5 with experts (text)",
    experts=Experts(shared_size="shared_expert_intermediate_size", normalized=True),
    # All layers have experts.
    defaults={**QWEN3_NEXT.defaults, "intermediate_size": 1},
    recurrent=Recurrent("delta", split=True),
)
QWEN3_5 = replace(
    QWEN3_5_MOE, model_type="qwen3_5_text", title="Qwen3.5 (text)", defaults=QWEN3_NEXT.defaults, experts=None
)
