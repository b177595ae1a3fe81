"""Kimi Linear: three layers of the delta rule whose rows forget by themselves for each one of attention over latents,
which has no positions."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.shared_experts import CORRECTED, SHARED_NAMES
from penstock_server.architectures.family import Family, Recurrent

# Our keys, and those of the object in which checkpoints have the sizes.
_SIZES = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
}


def _with_layers(family: Family, raw: dict[str, Any]) -> Family:
    """Read the makers' form: sizes and kinds of layers in an object, where layers are counted from 1. Where no kind is
    written, every fourth layer attends, counted from 0, but the first."""
    written, num_layers = raw.get("linear_attn_config", {}), raw.get("num_hidden_layers")
    if not isinstance(written, dict) or not isinstance(num_layers, int) or not 0 < num_layers < 10**4:
        return family
    sizes = {key: written[name] for key, name in _SIZES.items() if name in written}
    full, linear = written.get("full_attn_layers"), written.get("kda_layers")
    attending = list(range(4, num_layers, 4))
    if isinstance(full, list) and isinstance(linear, list):
        attending = [layer for layer in range(num_layers) if layer + 1 in full and layer + 1 not in linear]
    kinds = ["full_attention" if layer in attending else "linear_attention" for layer in range(num_layers)]
    return replace(family, defaults={**family.defaults, **sizes, "layer_types": kinds})


KIMI_LINEAR = Family(
    "kimi_linear",
    "Kimi Linear",
    aliases={
        "max_position_embeddings": "model_max_length",
        "n_group": "num_expert_group",
        "n_shared_experts": "num_shared_experts",
        "norm_topk_prob": "moe_renormalize",
        "num_experts_per_tok": "num_experts_per_token",
    },
    defaults={
        "first_k_dense_replace": 1,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 1048576,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-5,
        "routed_scaling_factor": 2.446,
    },
    fixed={
        "hidden_act": "silu",
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
    },
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    latent=True,
    rotary=False,
    recurrent=Recurrent("row_delta"),
    experts=CORRECTED,
    names=replace(
        SHARED_NAMES,
        recurrent="self_attn.",
        expert_gate="mlp.experts.{}.w1",
        expert_up="mlp.experts.{}.w3",
        expert_down="mlp.experts.{}.w2",
        # A name for the feed-forward of layers with experts, or of all layers.
        written=((".block_sparse_moe.", ".mlp."),),
    ),
    adapt=_with_layers,
)
