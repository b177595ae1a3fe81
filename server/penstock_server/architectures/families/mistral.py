"""Mistral, with windows or without, and those of its heirs whose queries grow with their position."""

from dataclasses import replace
from typing import Any

from penstock_server.architectures.families.deepseek import DEEPSEEK_V3
from penstock_server.architectures.families.shared_experts import CORRECTED
from penstock_server.architectures.family import Family, Temperature, Windows

_GROWING = Temperature(
    interval="original_max_position_embeddings", strength="llama_4_scaling_beta", in_rope=True
)


def _stretched(theta: float, factor: float, original: int) -> dict[str, Any]:
    """The rotary embedding that transformers takes where none is written."""
    return {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    }


MISTRAL = Family("mistral", "Mistral, Mistral Small 3", windows=Windows())
MINISTRAL = replace(MISTRAL, model_type="ministral", title="Ministral 8B")
MINISTRAL3 = replace(
    MISTRAL,
    model_type="ministral3",
    title="Ministral 3, Devstral 2",
    defaults={
        "rms_norm_eps": 1e-5,
        "head_dim": 128,
        "max_position_embeddings": 262_144,
        "rope_parameters": _stretched(1e6, 16.0, 16_384),
    },
    temperature=_GROWING,
)
MISTRAL4 = replace(
    DEEPSEEK_V3,
    model_type="mistral4",
    title="Mistral Small 4",
    defaults={
        "rope_interleave": True,
        "norm_topk_prob": True,
        "n_shared_experts": 1,
        "max_position_embeddings": 1_048_576,
        "rope_parameters": _stretched(1e4, 128.0, 8192),
    },
    fixed={"scoring_func": "softmax"},
    experts=replace(CORRECTED, sigmoid=False, wide_router=False, correction_dims=0),
    temperature=_GROWING,
)
