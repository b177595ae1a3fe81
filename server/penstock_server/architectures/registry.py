"""The families this server knows, by the `model_type` of config.json."""

from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.config_json import build_spec
from penstock_server.architectures.families.afmoe import AFMOE
from penstock_server.architectures.families.apertus import APERTUS
from penstock_server.architectures.families.aria import ARIA_TEXT
from penstock_server.architectures.families.baichuan import BAICHUAN
from penstock_server.architectures.families.bloom import BLOOM, MPT
from penstock_server.architectures.families.cohere import COHERE, COHERE2
from penstock_server.architectures.families.cohere2_moe import COHERE2_MOE
from penstock_server.architectures.families.dbrx import DBRX
from penstock_server.architectures.families.deepseek import (
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM4_MOE_LITE,
    GLM_MOE_DSA,
    KIMI_K2,
    MINICPM3,
    YOUTU,
)
from penstock_server.architectures.families.ernie import ERNIE4_5
from penstock_server.architectures.families.exaone import EXAONE, EXAONE4, EXAONE_MOE
from penstock_server.architectures.families.falcon import FALCON
from penstock_server.architectures.families.gemma import (
    GEMMA,
    GEMMA2,
    GEMMA3_TEXT,
    GEMMA4_TEXT,
    GEMMA4_UNIFIED_TEXT,
    VAULTGEMMA,
)
from penstock_server.architectures.families.glm import GLM, GLM4, GLM4V
from penstock_server.architectures.families.gpt import CODEGEN, GPT2, GPT_BIGCODE, GPT_NEO, GPT_NEOX, GPTJ
from penstock_server.architectures.families.gpt_oss import GPT_OSS
from penstock_server.architectures.families.granite import (
    GRANITE,
    GRANITE_SWA,
    GRANITEMOE,
    GRANITEMOE_SWA,
    GRANITEMOEHYBRID,
    GRANITEMOESHARED,
    HYPERCLOVAX,
)
from penstock_server.architectures.families.hunyuan import HUNYUAN_DENSE, HUNYUAN_MOE
from penstock_server.architectures.families.kimi_linear import KIMI_LINEAR
from penstock_server.architectures.families.lfm2 import LFM2, LFM2_MOE
from penstock_server.architectures.families.llama import (
    CWM,
    HELIUM,
    INTERNLM2,
    INTERNLM3,
    IQUESTCODER,
    LLAMA,
    XVERSE,
)
from penstock_server.architectures.families.llama4 import LLAMA4_TEXT
from penstock_server.architectures.families.mamba import (
    BAMBA,
    FALCON_H1,
    FALCON_MAMBA,
    JAMBA,
    MAMBA,
    MAMBA2,
    NEMOTRON_H,
)
from penstock_server.architectures.families.mistral import MINISTRAL, MINISTRAL3, MISTRAL, MISTRAL4
from penstock_server.architectures.families.mixtral import MIXTRAL
from penstock_server.architectures.families.nanochat import NANOCHAT
from penstock_server.architectures.families.nemotron import ARCEE, JAIS2, NEMOTRON
from penstock_server.architectures.families.olmo2 import FLEX_OLMO, OLMO, OLMO2, OLMO3, OLMOE
from penstock_server.architectures.families.opt import OPT
from penstock_server.architectures.families.persimmon import PERSIMMON
from penstock_server.architectures.families.phi import PHI, PHI3, PHIMOE
from penstock_server.architectures.families.qwen import MELLUM, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from penstock_server.architectures.families.qwen_next import QWEN3_5, QWEN3_5_MOE, QWEN3_NEXT
from penstock_server.architectures.families.qwen_vl import QWEN2_5_VL, QWEN2_VL, QWEN3_VL, QWEN3_VL_MOE
from penstock_server.architectures.families.seed_oss import SEED_OSS
from penstock_server.architectures.families.shared_experts import (
    DOTS1,
    ERNIE4_5_MOE,
    GLM4_MOE,
    GLM4V_MOE,
    HY_V3,
    MINIMAX_M2,
    SARVAM_MOE,
    SOLAR_OPEN,
)
from penstock_server.architectures.families.smollm3 import SMOLLM3
from penstock_server.architectures.families.stablelm import STABLELM
from penstock_server.architectures.families.starcoder2 import STARCODER2
from penstock_server.architectures.family import Family
from penstock_server.architectures.fields import read_json
from penstock_server.architectures.spec import ModelSpec
from penstock_server.architectures.text_part import is_whole, text_part
from penstock_server.base.config import RopeOverride
from penstock_server.base.errors import StartError

_ROWS = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3_TEXT, PHI3, FALCON, GPT2,
    GPT_NEOX, STARCODER2, OLMO2, GRANITE, COHERE, COHERE2, STABLELM, INTERNLM2, INTERNLM3, GPT_OSS,
    APERTUS, ARCEE, BLOOM, MPT, CODEGEN, ERNIE4_5, EXAONE4, GLM, GLM4, GPTJ, GPT_BIGCODE, HUNYUAN_DENSE, MINISTRAL,
    DOTS1, ERNIE4_5_MOE, FLEX_OLMO, GLM4_MOE, GRANITEMOE, GRANITEMOESHARED, HUNYUAN_MOE, MINIMAX_M2, OLMOE,
    DEEPSEEK_V2, DEEPSEEK_V3, GLM4_MOE_LITE, KIMI_K2, MINICPM3, NEMOTRON, OLMO3, OPT, PERSIMMON, PHI, SEED_OSS,
    SMOLLM3, YOUTU, QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, GRANITEMOEHYBRID, BAMBA, MAMBA2, NEMOTRON_H, FALCON_H1,
    LFM2, LFM2_MOE, MAMBA, FALCON_MAMBA, JAMBA, GPT_NEO, LLAMA4_TEXT, KIMI_LINEAR, BAICHUAN,
    XVERSE, MINISTRAL3, MISTRAL4, QWEN2_VL, QWEN2_5_VL, QWEN3_VL, QWEN3_VL_MOE, GLM4V, GLM4V_MOE,
    GEMMA4_TEXT, GEMMA4_UNIFIED_TEXT, DEEPSEEK_V32, GLM_MOE_DSA, DBRX, OLMO, PHIMOE,
    ARIA_TEXT, CWM, EXAONE, EXAONE_MOE, HELIUM, HYPERCLOVAX, HY_V3, IQUESTCODER, JAIS2, MELLUM, SARVAM_MOE, SOLAR_OPEN,
    VAULTGEMMA, AFMOE, GRANITE_SWA, GRANITEMOE_SWA, NANOCHAT, COHERE2_MOE,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.model_type: family for family in _ROWS}


def load_spec(folder: Path, rope: RopeOverride | None = None) -> ModelSpec:
    """Read a model folder's config; raises StartError with what is wrong and what to do."""
    path, raw, _ = read_config(folder)
    family = FAMILIES.get(str(raw.get("model_type")))
    if family is None:
        raise not_supported(path, raw)
    return build_spec(family, raw, path, rope)


class ModelConfig(NamedTuple):
    """The config.json of the model that is served."""

    path: Path
    raw: dict[str, Any]
    # Whether that is the text part of one that also sees or hears.
    is_text_part: bool


def read_config(folder: Path) -> ModelConfig:
    """The config.json of a model folder."""
    if not folder.is_dir():
        raise StartError(f"{folder}: no such folder; --model-id needs a local Hugging Face model folder")
    path = folder / "config.json"
    raw = read_json(path)
    return ModelConfig(path, text_part(raw, path), True) if is_whole(raw) else ModelConfig(path, raw, False)


def not_supported(path: Path, raw: dict[str, Any]) -> StartError:
    """The error for a model_type that no row describes."""
    if raw.get("model_type") is None:
        return StartError(f"{path}: model_type is missing")
    why = "nor known to the installed transformers"
    if raw.get("auto_map"):
        why = "its code is in the folder (auto_map), and code of a folder is never run"
    supported = ", ".join(sorted(FAMILIES))
    return StartError(
        f"{path}: model_type {raw['model_type']!r} is not supported, {why}; our own decoder has {supported}"
    )
