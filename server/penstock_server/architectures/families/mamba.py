"""Mamba-2 alone (Mamba 2, Codestral Mamba), in turns with attention (Bamba, Nemotron-H), and beside it (Falcon-H1)."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.shared_experts import CORRECTED
from penstock_server.architectures.family import Family, NameMap, Recurrent

_NEMOTRON_KINDS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
_MANY_LAYERS = 10**4


def _with_listed_attention(family: Family, raw: dict[str, Any]) -> Family:
    """Some layers attend, by their numbers."""
    num_layers, listed = raw.get("num_hidden_layers"), raw.get("attn_layer_indices") or []
    if not isinstance(num_layers, int) or not 0 < num_layers < _MANY_LAYERS or not isinstance(listed, list):
        return family
    kinds = ["full_attention" if layer in listed else "linear_attention" for layer in range(num_layers)]
    return replace(family, defaults={**family.defaults, "layer_types": kinds})


BAMBA = Family(
    "bamba",
    "Bamba",
    # The list of kinds follows from that of the layers that attend.
    aliases={"layer_types": ""},
    # Whatever is written, half of each head rotates.
    defaults={"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "mamba_conv_bias": True, "mamba_d_conv": 4},
    fixed={"hidden_act": "silu", "mlp_bias": False},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    recurrent=Recurrent("state_space"),
    names=NameMap(
        final_norm="model.final_layernorm",
        mlp_input_norm="pre_ff_layernorm",
        gate_up="feed_forward.gate_up_proj",
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        recurrent="mamba.",
    ),
    adapt=_with_listed_attention,
)


def _with_key_factor(family: Family, raw: dict[str, Any]) -> Family:
    """What keys are multiplied by is a factor of the scores."""
    factor, size, heads = (raw.get(key) for key in ("key_multiplier", "hidden_size", "num_attention_heads"))
    if not isinstance(factor, int | float) or not isinstance(size, int) or not isinstance(heads, int):
        return family
    return replace(family, attention_scale=factor * (size // heads) ** -0.5) if size >= heads > 0 else family


FALCON_H1 = Family(
    "falcon_h1",
    "Falcon-H1",
    aliases={"layer_types": "", "head_dim": ""},
    defaults={
        "rms_norm_eps": 1e-5,
        "mamba_conv_bias": True,
        "mamba_d_conv": 4,
        "mamba_norm_before_gate": True,
    },
    fixed={"hidden_act": "silu"},
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    recurrent=Recurrent(
        "state_space",
        usual_kind="hybrid",
        has_norm="mamba_rms_norm",
        norm_first="mamba_norm_before_gate",
        output_bias="projectors_bias",
    ),
    has_factors=True,
    embedding_scale="embedding_multiplier",
    logit_scale="lm_head_multiplier",
    names=replace(BAMBA.names),
    adapt=_with_key_factor,
)
_ALONE = NameMap(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    attention_input_norm="norm",
    mlp_input_norm="norm",
    qkv="",
    query="mixer.q_proj",
    key="mixer.k_proj",
    value="mixer.v_proj",
    output="mixer.o_proj",
    gate_up="",
    up="mixer.up_proj",
    down="mixer.down_proj",
    router="mixer.gate",
    router_correction="mixer.gate.e_score_correction_bias",
    experts_gate_up="mixer.experts.up_proj",
    experts_down="mixer.experts.down_proj",
    expert_up="mixer.experts.{}.up_proj",
    expert_down="mixer.experts.{}.down_proj",
    shared_up="mixer.shared_experts.up_proj",
    shared_down="mixer.shared_experts.down_proj",
    recurrent="mixer.",
)
MAMBA2 = Family(
    "mamba2",
    "Mamba 2, Codestral Mamba",
    aliases={
        "layer_types": "",
        "mamba_n_heads": "num_heads",
        "mamba_d_head": "head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_d_state": "state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
        # There is no attention; what is divided among ranks are these heads.
        "num_attention_heads": "num_heads",
        "head_dim": "",
    },
    # Nor feed-forward; no position is beyond what it was made for.
    defaults={
        "intermediate_size": 1,
        "max_position_embeddings": 131072,
        "mamba_n_groups": 8,
        "mamba_conv_bias": True,
    },
    fixed={"hidden_act": "silu"},
    norm_eps="layer_norm_epsilon",
    rotary=False,
    recurrent=Recurrent("state_space", single_parts=True),
    names=_ALONE,
)


def _with_pattern(family: Family, raw: dict[str, Any]) -> Family:
    """A letter for each layer, in the place of the list of kinds; the number of layers is that of the list."""
    kinds, pattern = raw.get("layers_block_type"), raw.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [_NEMOTRON_KINDS.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list):
        return family
    defaults = {**family.defaults, "layer_types": kinds, "num_hidden_layers": len(kinds)}
    return replace(family, defaults=defaults)


NEMOTRON_H = Family(
    "nemotron_h",
    "Nemotron-H, Nemotron Nano 2 and 3",
    aliases={
        "layer_types": "",
        "num_hidden_layers": "",
        "hidden_act": "mlp_hidden_act",
        "mamba_n_heads": "mamba_num_heads",
        "mamba_d_head": "mamba_head_dim",
        "mamba_n_groups": "n_groups",
        "mamba_d_state": "ssm_state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
        "num_experts": "n_routed_experts",
    },
    defaults={
        "hidden_act": "relu2",
        "mamba_conv_bias": True,
        "time_step_min": 0.001,
        "norm_topk_prob": True,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    },
    fixed={
        "mamba_hidden_act": "silu",
        "moe_latent_size": None,
        "residual_in_fp32": False,
    },
    norm_eps="layer_norm_epsilon",
    mlp_bias="mlp_bias",
    rotary=False,
    gated=False,
    recurrent=Recurrent("state_space", single_parts=True, output_bias="use_bias", min_step="time_step_min"),
    experts=replace(
        CORRECTED, first_layer_key="", shared_count="", shared_size="moe_shared_expert_intermediate_size"
    ),
    names=_ALONE,
    adapt=_with_pattern,
)
