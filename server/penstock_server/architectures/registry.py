"""The families this server knows, by the `model_type` of config.json."""

from pathlib import Path
from typing import Any

from penstock_server.architectures.config_json import build_spec
from penstock_server.architectures.families.cohere import COHERE, COHERE2
from penstock_server.architectures.families.falcon import FALCON
from penstock_server.architectures.families.gemma import GEMMA, GEMMA2, GEMMA3_TEXT
from penstock_server.architectures.families.gpt import GPT2, GPT_NEOX
from penstock_server.architectures.families.gpt_oss import GPT_OSS
from penstock_server.architectures.families.granite import GRANITE
from penstock_server.architectures.families.llama import INTERNLM2, INTERNLM3, LLAMA, MISTRAL
from penstock_server.architectures.families.mixtral import MIXTRAL
from penstock_server.architectures.families.olmo2 import OLMO2
from penstock_server.architectures.families.phi import PHI3
from penstock_server.architectures.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from penstock_server.architectures.families.stablelm import STABLELM
from penstock_server.architectures.families.starcoder2 import STARCODER2
from penstock_server.architectures.family import Family
from penstock_server.architectures.fields import read_json
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.config import RopeOverride
from penstock_server.base.errors import StartError

_ROWS = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3_TEXT, PHI3, FALCON, GPT2,
    GPT_NEOX, STARCODER2, OLMO2, GRANITE, COHERE, COHERE2, STABLELM, INTERNLM2, INTERNLM3, GPT_OSS,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.model_type: family for family in _ROWS}


def load_spec(folder: Path, rope: RopeOverride | None = None) -> ModelSpec:
    """Read a model folder's config; raises StartError with what is wrong and what to do."""
    path, raw = read_config(folder)
    family = FAMILIES.get(str(raw.get("model_type")))
    if family is None:
        raise not_supported(path, raw)
    return build_spec(family, raw, path, rope)


def read_config(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The folder's config.json, and what is in it."""
    if not folder.is_dir():
        raise StartError(f"{folder}: no such folder; --model-id needs a local Hugging Face model folder")
    path = folder / "config.json"
    return path, read_json(path)


def not_supported(path: Path, raw: dict[str, Any]) -> StartError:
    """The error for a model_type that no row describes."""
    supported = ", ".join(sorted(FAMILIES))
    return StartError(
        f"{path}: model_type {raw.get('model_type')!r} is not supported; supported: {supported}, "
        "and with the installed transformers what it can compute"
    )
