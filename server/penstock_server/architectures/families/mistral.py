"""Mistral, with windows or without, and those of its heirs whose queries grow with their position."""

from dataclasses import replace

from penstock_server.architectures.families.deepseek import DEEPSEEK_V3
from penstock_server.architectures.families.shared_experts import CORRECTED
from penstock_server.architectures.family import Family, Temperature, Windows

_GROWING = Temperature(
    interval="original_max_position_embeddings", strength="llama_4_scaling_beta", in_rope=True
)

MISTRAL = Family("mistral", "Mistral, Mistral Small 3", windows=Windows())
MINISTRAL = replace(MISTRAL, model_type="ministral", title="Ministral 8B")
MINISTRAL3 = replace(
    MISTRAL,
    model_type="ministral3",
    title="Ministral 3, Devstral 2",
    defaults={"rms_norm_eps": 1e-5, "head_dim": 128},
    temperature=_GROWING,
)
MISTRAL4 = replace(
    DEEPSEEK_V3,
    model_type="mistral4",
    title="Mistral Small 4",
    defaults={"rope_interleave": True, "norm_topk_prob": True, "n_shared_experts": 1},
    fixed={"scoring_func": "softmax"},
    experts=replace(CORRECTED, sigmoid=False, wide_router=False, correction_dims=0),
    temperature=_GROWING,
)
