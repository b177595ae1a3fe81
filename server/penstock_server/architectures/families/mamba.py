"""Mamba-1 and Mamba-2 alone, in turns with attention (Jamba, Bamba, Nemotron-H), and beside it (Falcon-H1)."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.shared_experts import CORRECTED
from penstock_server.architectures.family import Experts, Family, NameMap, Recurrent, WrongValue

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
    """Turn the factor of keys into a factor of the scores."""
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

MAMBA = Family(
    "mamba",
    "Mamba 1",
    aliases={
        "layer_types": "",
        "mamba_d_state": "state_size",
        "mamba_d_conv": "conv_kernel",
        "mamba_expand": "expand",
        "mamba_dt_rank": "time_step_rank",
        "mamba_conv_bias": "use_conv_bias",
        "mamba_proj_bias": "use_bias",
        # Neither attention nor feed-forward; channels are divided among ranks.
        "num_attention_heads": "hidden_size",
        "num_key_value_heads": "",
        "intermediate_size": "",
        "head_dim": "",
    },
    defaults={**MAMBA2.defaults, "mamba_d_state": 16, "mamba_d_conv": 4, "tie_word_embeddings": True},
    fixed={"hidden_act": "silu"},
    norm_eps="layer_norm_epsilon",
    rotary=False,
    recurrent=Recurrent("selective", single_parts=True),
    names=_ALONE,
)
FALCON_MAMBA = replace(
    MAMBA,
    model_type="falcon_mamba",
    title="Falcon Mamba",
    defaults={**MAMBA.defaults, "mixer_rms_eps": 1e-6},
    recurrent=Recurrent(
        "selective", single_parts=True, selective_norm="plain", selective_eps="mixer_rms_eps"
    ),
)


def _with_periods(family: Family, raw: dict[str, Any]) -> Family:
    """Every n-th layer attends, and every m-th has experts."""
    num_layers = raw.get("num_hidden_layers", 32)
    keys = {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    }
    numbers = [raw.get(key, usual) for key, usual in keys.items()]
    if not all(isinstance(number, int) and 0 <= number < _MANY_LAYERS for number in (num_layers, *numbers)):
        return family
    every, first, every_sparse, first_sparse = numbers
    if not every or not every_sparse:
        return family
    layers = range(num_layers)
    defaults = {
        **family.defaults,
        "layer_types": ["full_attention" if layer % every == first else "mamba" for layer in layers],
        "mlp_only_layers": [layer for layer in layers if layer % every_sparse != first_sparse],
    }
    experts = None if raw.get("num_experts") == 1 else family.experts
    return replace(family, defaults=defaults, experts=experts)


JAMBA = Family(
    "jamba",
    "Jamba",
    aliases={"layer_types": "", "mlp_only_layers": ""},
    defaults={
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_conv_bias": True,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 262144,
    },
    fixed={"hidden_act": "silu"},
    rotary=False,
    recurrent=Recurrent("selective", selective_norm="weighted"),
    experts=Experts(size="intermediate_size", normalized=False),
    names=replace(
        BAMBA.names,
        router="feed_forward.router",
        experts_gate_up="feed_forward.experts.gate_up_proj",
        experts_down="feed_forward.experts.down_proj",
        expert_gate="feed_forward.experts.{}.gate_proj",
        expert_up="feed_forward.experts.{}.up_proj",
        expert_down="feed_forward.experts.{}.down_proj",
    ),
    adapt=_with_periods,
)


def _with_pattern(family: Family, raw: dict[str, Any]) -> Family:
    """A letter for each layer, in the place of the list of kinds; the number of layers is that of the list."""
    kinds, pattern = raw.get("layers_block_type"), raw.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [_NEMOTRON_KINDS.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list) or not kinds:
        expected = "a kind for each layer, or a letter for each in hybrid_override_pattern"
        raise WrongValue("layers_block_type", kinds, expected)
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
