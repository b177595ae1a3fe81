"""A model folder, opened and checked without torch: what the model is, and where its weights are."""

from pathlib import Path
from typing import NamedTuple

from penstock_server.checkpoint import Checkpoint
from penstock_server.config import LoadFormat
from penstock_server.models.registry import load_spec
from penstock_server.models.spec import ModelSpec


class ModelFolder(NamedTuple):
    """What a shard loads. Without a checkpoint the weights are noise."""

    spec: ModelSpec
    checkpoint: Checkpoint | None


def open_folder(folder: Path, load_format: LoadFormat = "safetensors") -> ModelFolder:
    """Read config.json and the headers of the weights; raises StartError with file, what is wrong and what to do."""
    spec = load_spec(folder)
    if load_format == "dummy":
        return ModelFolder(spec, None)
    checkpoint = Checkpoint.open(folder)
    _check_counts(spec, checkpoint)
    return ModelFolder(spec, checkpoint)


def _check_counts(spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """The last layer and the last expert must be there, so that no number in config.json makes a start long."""
    names, last = spec.names, spec.names.layer.format(spec.num_layers - 1)
    checkpoint.require_name(f"{last}{names.attention_input_norm or names.output}.weight")
    sparse = [number for number, layer in enumerate(spec.layers) if layer.is_sparse]
    if spec.moe is None or not sparse:
        return
    prefix = names.layer.format(sparse[-1])
    if not checkpoint.has(prefix + names.experts_gate_up):
        checkpoint.require_name(f"{prefix}{names.expert_gate.format(spec.moe.num_experts - 1)}.weight")
