"""Hunyuan: queries and keys are normalised after their rotation."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Experts, Family, NameMap

HUNYUAN_DENSE = Family(
    "hunyuan_v1_dense",
    "Hunyuan 0.5B to 7B",
    defaults={"rms_norm_eps": 1e-5},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm="head",
    qk_norm_after_rope=True,
    names=NameMap(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
)


def _with_one_count(family: Family, raw: dict[str, Any]) -> Family:
    """The published model writes a number for each layer, the same for all."""
    written = raw.get("moe_topk")
    if not isinstance(written, list) or len(set(map(str, written))) != 1:
        return family
    aliases = {**family.aliases, "num_experts_per_tok": ""}
    return replace(family, aliases=aliases, defaults={**family.defaults, "num_experts_per_tok": written[0]})


HUNYUAN_MOE = replace(
    HUNYUAN_DENSE,
    model_type="hunyuan_v1_moe",
    title="Hunyuan-A13B",
    aliases={"num_experts_per_tok": "moe_topk"},
    experts=Experts(
        size="intermediate_size",
        normalized=True,
        wide_router=True,
        shared_size="intermediate_size",
        gates_shared=False,
    ),
    names=replace(
        HUNYUAN_DENSE.names,
        router="mlp.gate.wg",
        shared_gate="mlp.shared_mlp.gate_proj",
        shared_up="mlp.shared_mlp.up_proj",
        shared_down="mlp.shared_mlp.down_proj",
    ),
    adapt=_with_one_count,
)
