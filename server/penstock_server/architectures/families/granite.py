"""Granite 3 and 4: Llama with a factor at each place where one can stand, dense and with experts; 4 with Mamba-2.
HyperCLOVA X has norms behind both parts, too."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import (
    Experts,
    Family,
    NameMap,
    Recurrent,
    Windows,
    WrongValue,
)

GRANITE = Family(
    "granite",
    "Granite 3.x",
    defaults={"attention_multiplier": 1.0},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    attention_scale="attention_multiplier",
    embedding_scale="embedding_multiplier",
    residual_multiplier="residual_multiplier",
    logit_divisor="logits_scaling",
)


def _with_norms_behind(family: Family, raw: dict[str, Any]) -> Family:
    """Norms behind both parts, unless config.json says that there are none."""
    written = raw.get("use_post_norm")
    if not isinstance(written, bool | None):
        raise WrongValue("use_post_norm", written, "true or false")
    if written is False:
        return family
    names = replace(family.names, attention_output_norm="post_norm1", mlp_output_norm="post_norm2")
    return replace(family, names=names)


HYPERCLOVAX = replace(
    GRANITE,
    model_type="hyperclovax",
    title="HyperCLOVA X SEED Think",
    defaults={},
    logit_scale="logits_scaling",
    logit_divisor=1.0,
    adapt=_with_norms_behind,
)
GRANITEMOE = replace(
    GRANITE,
    model_type="granitemoe",
    title="Granite 3.x MoE",
    experts=Experts(size="intermediate_size", normalized=True),
    names=NameMap(
        router="block_sparse_moe.router.layer",
        experts_gate_up="block_sparse_moe.input_linear.weight",
        experts_down="block_sparse_moe.output_linear.weight",
    ),
)
GRANITEMOESHARED = replace(
    GRANITEMOE,
    model_type="granitemoeshared",
    title="Granite MoE with a shared expert",
    experts=Experts(
        size="intermediate_size", normalized=True, shared_size="shared_intermediate_size", gates_shared=False
    ),
    names=replace(
        GRANITEMOE.names,
        shared_gate_up="shared_mlp.input_linear",
        shared_down="shared_mlp.output_linear",
    ),
)
GRANITE_SWA = replace(
    GRANITE,
    model_type="granite_swa",
    title="Granite with windows (Swash) 2B",
    defaults={
        **GRANITE.defaults,
        "sliding_window": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "max_position_embeddings": 8192,
    },
    sinks=True,
    windows=Windows(full_every=4, full_first=True),
    thetas_key="layer_rope_theta",
)
GRANITEMOE_SWA = replace(
    GRANITEMOESHARED,
    model_type="granitemoe_swa",
    title="Granite with windows (Swash) 3B-A600M",
    defaults={**GRANITE.defaults, "sliding_window": 128, "shared_intermediate_size": 0},
    sinks=True,
    windows=GRANITE_SWA.windows,
    thetas_key=GRANITE_SWA.thetas_key,
    names=replace(
        GRANITEMOESHARED.names,
        router="block_sparse_moe.router",
        experts_gate_up="block_sparse_moe.experts.gate_up_proj",
        experts_down="block_sparse_moe.experts.down_proj",
    ),
)


def _with_parts(family: Family, raw: dict[str, Any]) -> Family:
    """Attention may rotate; small models have no experts, and feed forward by what else is the shared one."""
    if raw.get("position_embedding_type") == "rope":
        family = replace(family, rotary=True)
    if raw.get("num_local_experts", 8) != 0:
        return family
    names = replace(
        family.names,
        gate_up="shared_mlp.input_linear",
        gate="",
        up="",
        down="shared_mlp.output_linear",
    )
    aliases = {**family.aliases, "intermediate_size": "shared_intermediate_size"}
    return replace(family, experts=None, names=names, aliases=aliases)


GRANITEMOEHYBRID = replace(
    GRANITEMOESHARED,
    model_type="granitemoehybrid",
    title="Granite 4",
    defaults={**GRANITE.defaults, "mamba_conv_bias": True, "mamba_d_conv": 4},
    fixed={"hidden_act": "silu"},
    rotary=False,
    recurrent=Recurrent("state_space"),
    names=replace(GRANITEMOESHARED.names, recurrent="mamba."),
    adapt=_with_parts,
)
