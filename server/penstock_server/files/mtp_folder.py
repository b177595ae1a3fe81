"""Finds the layer of multi-token prediction in the checkpoint of a model: one more decoder layer, which attends.

There are two forms. DeepSeek V3's lies behind the last layer of the model, and what is built like it has it, too:
GLM-4.5, Kimi K2. That of Qwen3-Next and Qwen3.5 lies apart, in `mtp.`. Needs no torch.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from penstock_server.architectures.spec import LayerSpec, ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.quantization import Declared


class MtpNames(NamedTuple):
    """Where its own tensors are, beside those of a decoder layer: names without `.weight`.

    Copies of the model's embedding and head may lie beside them; those of the model serve.
    """

    layer: str
    embedding_norm: str
    hidden_norm: str
    joined: str
    norm: str


class MtpFolder(NamedTuple):
    """The contents of a folder with a layer for multi-token prediction."""

    checkpoint: Checkpoint
    # The spec of the model with that layer behind its own, as it is named there.
    spec: ModelSpec
    names: MtpNames
    # None where the weights have 16 bits or more.
    quantization: Declared | None


def open_mtp(path: Path, target: ModelFolder, spec: ModelSpec) -> MtpFolder:
    """The layer in a checkpoint; raises StartError, with the names that are missing, where it has none."""
    if target.checkpoint is None:
        raise StartError("--load-format dummy reads no weights, and the layer is among them; leave one out")
    is_own = path == target.path
    checkpoint = target.checkpoint if is_own else Checkpoint.open(path)
    names = _names(spec)
    mixer = names.layer + spec.names.attention_input_norm
    missing = [f"{name}.weight" for name in (*names[1:], mixer) if not checkpoint.has(f"{name}.weight")]
    if missing:
        raise StartError(
            f"{path} has no layer of multi-token prediction: it lacks {', '.join(missing)}; use a checkpoint with that "
            "layer, or --speculation ngram"
        )
    _check_sizes(checkpoint, f"{names.joined}.weight", spec.hidden_size)
    with_layer = replace(
        spec,
        layers=(*spec.layers, _kind(checkpoint, names, spec)),
        names=replace(spec.names, layer=names.layer),
    )
    return MtpFolder(checkpoint, with_layer, names, target.quantization if is_own else None)


def _names(spec: ModelSpec) -> MtpNames:
    apart = spec.names.mtp
    if apart:
        own = (f"{apart}{name}" for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"))
        return MtpNames(f"{apart}layers.0.", *own)
    layer = spec.names.layer.format(spec.num_layers)
    return MtpNames(layer, *(f"{layer}{name}" for name in ("enorm", "hnorm", "eh_proj", "shared_head.norm")))


def _kind(checkpoint: Checkpoint, names: MtpNames, spec: ModelSpec) -> LayerSpec:
    """The kind of the model's last layer that attends, but this layer may be dense where that one is sparse."""
    kind = next(layer for layer in reversed(spec.layers) if layer.has_attention)
    # An index is its own: nothing is computed before it from which it could take one.
    kind = replace(kind, index_source=None)
    if not spec.names.mtp:
        return kind
    return replace(kind, is_sparse=checkpoint.has(f"{names.layer}{spec.names.router}.weight"))


def _check_sizes(checkpoint: Checkpoint, name: str, size: int) -> None:
    shape = checkpoint.require_name(name).shape
    if shape != (size, 2 * size):
        raise StartError(
            f"{checkpoint.folder}: {name} has shape {list(shape)}, and for this model it would be {[size, 2 * size]}"
        )
