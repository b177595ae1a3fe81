"""The text part of Qwen2-VL to Qwen3-VL: of text, the three positions of a token are one."""

from dataclasses import replace

from penstock_server.architectures.families.qwen import QWEN2, QWEN3, QWEN3_MOE
from penstock_server.architectures.family import Experts

_ONE_POSITION = {"mrope": "default"}
_LONG = {"rope_theta": 5e5, "max_position_embeddings": 128_000}

QWEN2_VL = replace(
    QWEN2,
    model_type="qwen2_vl_text",
    title="Qwen2-VL (text)",
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_position_embeddings": 32_768},
    rope_kinds=_ONE_POSITION,
)
QWEN2_5_VL = replace(QWEN2_VL, model_type="qwen2_5_vl_text", title="Qwen2.5-VL (text)")
QWEN3_VL = replace(
    QWEN3,
    model_type="qwen3_vl_text",
    title="Qwen3-VL (text)",
    defaults={**QWEN3.defaults, **_LONG},
    windows=None,
    rope_kinds=_ONE_POSITION,
)
QWEN3_VL_MOE = replace(
    QWEN3_MOE,
    model_type="qwen3_vl_moe_text",
    title="Qwen3-VL with experts (text)",
    defaults={**QWEN3_MOE.defaults, **_LONG},
    windows=None,
    rope_kinds=_ONE_POSITION,
    experts=Experts(normalized=True, inputs_first=True),
)
