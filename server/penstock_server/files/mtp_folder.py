"""Finds the layer of multi-token prediction in the checkpoint of a model: one more decoder layer, behind the last.

DeepSeek V3 made its form, and what is built like it has it, too: GLM-4.5, Kimi K2. Needs no torch.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.quantization import Declared

# Beside the tensors of a layer. Copies of the model's embedding and head may lie beside them; those of the model serve.
_OWN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")


class MtpFolder(NamedTuple):
    """What is loaded."""

    checkpoint: Checkpoint
    # Of the model with that layer behind its own, as it is named there.
    spec: ModelSpec
    # None where the weights have 16 bits or more.
    quantization: Declared | None


def open_mtp(path: Path, target: ModelFolder, spec: ModelSpec) -> MtpFolder:
    """The layer in a checkpoint; raises StartError, with the names that are missing, where it has none."""
    if target.checkpoint is None:
        raise StartError("--load-format dummy reads no weights, and the layer is among them; leave one out")
    is_own = path == target.path
    checkpoint = target.checkpoint if is_own else Checkpoint.open(path)
    prefix = spec.names.layer.format(spec.num_layers)
    mixer = spec.names.attention_input_norm
    names = [f"{prefix}{name}.weight" for name in (*_OWN, mixer)]
    missing = [name for name in names if not checkpoint.has(name)]
    if missing:
        raise StartError(
            f"{path} has no layer of multi-token prediction: it lacks {', '.join(missing)}; use a checkpoint with that "
            "layer, or --speculation ngram"
        )
    _check_sizes(checkpoint, f"{prefix}eh_proj.weight", spec.hidden_size)
    with_layer = replace(spec, layers=(*spec.layers, spec.layers[-1]))
    return MtpFolder(checkpoint, with_layer, target.quantization if is_own else None)


def _check_sizes(checkpoint: Checkpoint, name: str, size: int) -> None:
    shape = checkpoint.require_name(name).shape
    if shape != (size, 2 * size):
        raise StartError(
            f"{checkpoint.folder}: {name} has shape {list(shape)}, and for this model it would be {[size, 2 * size]}"
        )
