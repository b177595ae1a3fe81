"""Llama 2 and 3, those that are Llama under other names, and those that differ in a fact or two."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.family import Family, NameMap, Windows


def _with_own_names(family: Family, raw: dict[str, Any]) -> Family:
    """InternLM 3 as its makers write it; transformers writes it as Llama."""
    if "qkv_bias" not in raw:
        return family
    return replace(family, aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"})


LLAMA = Family(
    "llama",
    "Llama 2, 3.x",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
)
INTERNLM2 = Family(
    "internlm2",
    "InternLM 2, 2.5",
    qkv_bias="bias",
    output_bias="bias",
    qkv_layout="grouped",
    names=NameMap(
        embedding="model.tok_embeddings",
        lm_head="output",
        attention_input_norm="attention_norm",
        mlp_input_norm="ffn_norm",
        qkv="attention.wqkv",
        output="attention.wo",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
    ),
)
# Its models with experts have the same model_type.
XVERSE = replace(LLAMA, model_type="xverse", title="XVERSE 7B, 13B, 65B", fixed={"num_experts": None})
INTERNLM3 = replace(LLAMA, model_type="internlm3", title="InternLM 3", adapt=_with_own_names)
HELIUM = replace(
    LLAMA,
    model_type="helium",
    title="Helium 1",
    defaults={"head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 100000.0, "max_position_embeddings": 4096},
    output_bias=False,
    interleaved_rope=True,
)
IQUESTCODER = replace(
    LLAMA,
    model_type="iquestcoder",
    title="IQuest-Coder V1",
    defaults={"head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072},
    # Fields that its makers' code knows, and that no published model sets.
    fixed={"clip_qkv": None, "use_sliding_window": False},
)
CWM = replace(
    LLAMA,
    model_type="cwm",
    title="Code World Model",
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "sliding_window": 8192,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    qkv_bias=False,
    output_bias=False,
    windows=Windows(full_every=4, pattern_key="", full_first=True),
)
