"""EXAONE 3: Llama under names of its own. EXAONE 4: norms behind both parts, three layers with a window to one that
sees everything and does not rotate; K-EXAONE: with experts, and norms before both parts."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.llama import LLAMA
from penstock_server.architectures.families.shared_experts import CORRECTED, SHARED_NAMES
from penstock_server.architectures.family import Family, NameMap, Windows

# Our keys, and those of its makers; transformers writes ours.
_OF_ITS_MAKERS = {
    "num_hidden_layers": "num_layers",
    "rms_norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}


def _with_its_keys(family: Family, raw: dict[str, Any]) -> Family:
    return replace(family, aliases={ours: theirs for ours, theirs in _OF_ITS_MAKERS.items() if theirs in raw})


EXAONE = replace(
    LLAMA,
    model_type="exaone",
    title="EXAONE 3.0, 3.5, Deep",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 4096},
    names=NameMap(
        embedding="transformer.wte",
        final_norm="transformer.ln_f",
        layer="transformer.h.{}.",
        attention_input_norm="ln_1",
        mlp_input_norm="ln_2",
        query="attn.attention.q_proj",
        key="attn.attention.k_proj",
        value="attn.attention.v_proj",
        output="attn.attention.out_proj",
        gate="mlp.c_fc_0",
        up="mlp.c_fc_1",
        down="mlp.c_proj",
    ),
    adapt=_with_its_keys,
)


def _adapt(family: Family, raw: dict[str, Any]) -> Family:
    """The small model has no windows, and all of its layers rotate."""
    if raw.get("sliding_window", 0) is None:
        return replace(family, windows=None, rope_only_in_windows=False)
    return family


EXAONE4 = Family(
    "exaone4",
    "EXAONE 4.0",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    qk_norm="head",
    windows=Windows(full_every=4),
    rope_only_in_windows=True,
    names=NameMap(
        attention_input_norm="",
        attention_output_norm="post_attention_layernorm",
        mlp_input_norm="",
        mlp_output_norm="post_feedforward_layernorm",
    ),
    adapt=_adapt,
)

EXAONE_MOE = replace(
    EXAONE4,
    model_type="exaone_moe",
    title="K-EXAONE 236B-A23B",
    aliases={"n_shared_experts": "num_shared_experts"},
    defaults={
        **EXAONE4.defaults,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
    },
    experts=CORRECTED,
    names=replace(SHARED_NAMES, router_correction="mlp.e_score_correction_bias"),
)
