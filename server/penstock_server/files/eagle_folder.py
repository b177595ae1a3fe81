"""Opens a folder with a head of EAGLE: one layer that reads hidden states of a model. Needs no torch.

The first two versions read what the model returns and have `fc` over it and an embedding; the third reads three hidden
states, and is published in its own form or in that of `speculators`, whose config.json has more to say. P-EAGLE is the
third version, trained to guess several tokens at once (`parallel_head`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.config_json import build_spec
from penstock_server.architectures.families.llama import LLAMA
from penstock_server.architectures.families.qwen import QWEN3
from penstock_server.architectures.family import Windows
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.parallel_head import MASK, ParallelFacts, read_parallel
from penstock_server.files.pickled import is_pickled

# Layers of Llama in a head may have a window, too, where `layer_types` says so.
_LLAMA = replace(LLAMA, windows=Windows(first_key="max_window_layers"))
_FAMILIES = {"llama": _LLAMA, "qwen3": QWEN3}
_KIND = "speculators_model_type"
_KINDS = ("eagle3", "peagle")
_LAYERS = "eagle_aux_hidden_state_layer_ids"
# The name of the first layer in the third version; `speculators` counts layers from 0.
_MIDDLE = "midlayer"


class EagleFacts(NamedTuple):
    """The options of a head of the third version; a head of the others has none of them."""

    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class EagleFolder(NamedTuple):
    """The contents of a folder with an EAGLE head."""

    checkpoint: Checkpoint
    # The spec of its layers; names and sizes are its own, vocabulary and length those of the model.
    spec: ModelSpec
    # How the names of its first layer begin; `spec` has those of the others.
    first_layer: str
    # The hidden states that it reads, as `Taps` has them.
    layers: tuple[int, ...]
    # None for the first two versions.
    third: EagleFacts | None
    # Tokens that it knows, where these are not all of the model's.
    draft_vocab_size: int | None
    # None where it guesses token by token.
    parallel: ParallelFacts | None


def is_eagle(folder: Path, raw: dict[str, Any]) -> bool:
    """Whether a folder is one of a head, by its config.json, or by its tensors, if they can be read."""
    if _KIND in raw or "draft_vocab_size" in raw:
        return True
    if next(folder.glob("*.safetensors"), None) is None:
        return False
    return "fc.weight" in Checkpoint.open(folder).entries


def open_eagle(folder: Path, raw: dict[str, Any], target: ModelSpec) -> EagleFolder:
    """The head of a folder; raises StartError unless it was made for a model of these sizes."""
    path = folder / "config.json"
    if raw.get(_KIND, "eagle3") not in _KINDS:
        raise StartError(f"{path}: {_KIND} is {raw[_KIND]!r}; supported: {', '.join(_KINDS)}")
    _refuse_pickles(folder)
    checkpoint = Checkpoint.open(folder)
    is_parallel = raw[_KIND] == "peagle" if _KIND in raw else checkpoint.has(MASK)
    is_third = any(checkpoint.has(f"{layer}.hidden_norm.weight") for layer in (_MIDDLE, "layers.0"))
    first_layer = f"{_MIDDLE}." if checkpoint.has(f"{_MIDDLE}.mlp.down_proj.weight") else "layers.{}."
    spec = _layers_spec(checkpoint, raw, path, target, first_layer)
    if not is_third and (is_parallel or spec.num_layers > 1):
        said = "guesses several tokens at once" if is_parallel else f"has {spec.num_layers} layers"
        raise StartError(
            f"{path}: the head {said}, as those of the third version may, but layers.0.hidden_norm.weight is in no file"
        )
    fields = Fields(raw, path)
    layers = _read_layers(fields, target) if is_third else (target.num_layers,)
    _check_sizes(checkpoint, spec, target, len(layers))
    vocab_size = (
        fields.integer("draft_vocab_size", default=target.vocab_size) if is_third else target.vocab_size
    )
    if checkpoint.has("lm_head.weight") and checkpoint.require_name("lm_head.weight").shape[0] != vocab_size:
        raise StartError(
            f"{folder}: its head has {checkpoint.require_name('lm_head.weight').shape[0]} tokens, and it is to know "
            f"{vocab_size}; use a head that was trained for this model"
        )
    if vocab_size != target.vocab_size:
        checkpoint.require_name("d2t")
    known = None if vocab_size == target.vocab_size and not checkpoint.has("d2t") else vocab_size
    facts = _facts(fields) if is_third else None
    states = len(layers) * target.hidden_size
    parallel = read_parallel(fields, checkpoint, states, target.vocab_size) if is_parallel else None
    return EagleFolder(checkpoint, spec, first_layer, layers, facts, known, parallel)


def _facts(fields: Fields) -> EagleFacts:
    facts = EagleFacts(*(fields.fact(name) for name in EagleFacts._fields))
    if facts.norm_before_fc and facts.fc_norm:
        raise StartError(
            f"{fields.path}: norm_before_fc and fc_norm are both true; a head has one of the two"
        )
    return facts


def _layers_spec(
    checkpoint: Checkpoint, raw: dict[str, Any], path: Path, target: ModelSpec, first_layer: str
) -> ModelSpec:
    """The layers as those of a model, of which most heads have one."""
    inner = raw.get("transformer_layer_config", raw)
    if not isinstance(inner, dict):
        raise Fields(raw, path).error("transformer_layer_config", inner, "an object")
    # The library reads it so where it is not said.
    kind = inner.get("model_type", "llama" if inner is raw else "qwen3")
    if kind not in _FAMILIES:
        raise StartError(f"{path}: model_type of the layer is {kind!r}; supported: {', '.join(_FAMILIES)}")
    spec = build_spec(_FAMILIES[kind], {"vocab_size": 1, "num_hidden_layers": 1, **inner}, path)
    has_norm = checkpoint.has(f"{first_layer.format(0)}input_layernorm.weight")
    names = replace(
        spec.names,
        layer="layers.{}.",
        embedding="embed_tokens",
        final_norm="norm",
        attention_input_norm=spec.names.attention_input_norm if has_norm else "",
    )
    return replace(spec, names=names, vocab_size=target.vocab_size, max_sequence_len=target.max_sequence_len)


def _read_layers(fields: Fields, target: ModelSpec) -> tuple[int, ...]:
    """The layers of the file, or the usual ones: near the beginning, in the middle, and near the end."""
    count = target.num_layers
    own = fields.raw.get("eagle_config")
    written = own.get(_LAYERS) if isinstance(own, dict) else None
    layers = fields.get(_LAYERS, written) or [2, count // 2, count - 3]
    if not isinstance(layers, list) or len(layers) != 3:
        raise fields.error(_LAYERS, layers, "a list of three layers")
    if not all(isinstance(layer, int) and 0 <= layer <= count for layer in layers):
        raise fields.error(_LAYERS, layers, f"layers of the model, which has {count}")
    return tuple(layers)


def _check_sizes(checkpoint: Checkpoint, spec: ModelSpec, target: ModelSpec, num_states: int) -> None:
    shape = checkpoint.require_name("fc.weight").shape
    reads = spec.hidden_size + target.hidden_size if num_states == 1 else num_states * target.hidden_size
    if shape != (spec.hidden_size, reads):
        raise StartError(
            f"{checkpoint.folder}: fc.weight has shape {list(shape)}, and for this model it would be "
            f"{[spec.hidden_size, reads]}, because its hidden_size is {target.hidden_size}"
        )
    if not checkpoint.has("embed_tokens.weight") and spec.hidden_size != target.hidden_size:
        raise StartError(
            f"{checkpoint.folder}: its hidden_size is {spec.hidden_size}, that of the model {target.hidden_size}, and "
            "it has no embed_tokens.weight of its own"
        )


def _refuse_pickles(folder: Path) -> None:
    if next(folder.glob("*.safetensors"), None) is None and (folder / "pytorch_model.bin").is_file():
        raise is_pickled(folder / "pytorch_model.bin", folder / "model.safetensors")
