"""The families this server knows, by the `model_type` of config.json."""

from pathlib import Path

from penstock_server.errors import StartError
from penstock_server.models import llama, qwen2, qwen3
from penstock_server.models.config import ModelSpec, build_spec, read_json

FAMILIES = {family.model_type: family for family in (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY)}


def load_spec(folder: Path) -> ModelSpec:
    """Read a model folder's config; raises StartError with what is wrong and what to do."""
    if not folder.is_dir():
        raise StartError(f"{folder}: no such folder; --model-path needs a local Hugging Face model folder")
    path = folder / "config.json"
    raw = read_json(path)
    family = FAMILIES.get(str(raw.get("model_type")))
    if family is None:
        supported = ", ".join(sorted(FAMILIES))
        raise StartError(
            f"{path}: model_type {raw.get('model_type')!r} is not supported; supported: {supported}"
        )
    return build_spec(family, raw, path)
