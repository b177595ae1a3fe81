"""Opens and checks a model folder: what the model is, which code computes it, and where its weights are."""

import ast
import logging
import threading
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.config_json import read_dtype
from penstock_server.architectures.fields import Fields
from penstock_server.architectures.registry import FAMILIES, load_spec, not_supported, read_config
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.config import (
    AtLoad,
    GenerationConfig,
    LoadFormat,
    ModelImpl,
    ModelOverrides,
    StoredFormat,
)
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.generation_config import (
    GenerationDefaults,
    override_generation_defaults,
    read_generation_defaults,
)
from penstock_server.files.gguf.folder import open_gguf
from penstock_server.files.quantization import Declared, check_asked, check_names, read_declared

logger = logging.getLogger(__name__)

_NO_OVERRIDES = ModelOverrides()
_CAUSAL_MODELS = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
# Python 3.11 counts the depth of a syntax tree for all threads together: two that parse at once both fail.
_PARSING = threading.Lock()


class ModelFolder(NamedTuple):
    """The contents of a model folder that a shard loads."""

    path: Path
    model_type: str
    dtype: str
    # None where the code of transformers computes the model.
    spec: ModelSpec | None
    # None where the weights are noise.
    checkpoint: Checkpoint | None
    # The checkpoint's own quantization; None: weights have 16 bits or more.
    quantization: Declared | None
    # How they are quantized while they are read; None: they stay as they are.
    at_load: AtLoad | None
    # Sampling defaults of the model; None where those of the server apply.
    generation: GenerationDefaults | None


def open_folder(
    folder: Path,
    load_format: LoadFormat = "safetensors",
    model_impl: ModelImpl = "auto",
    generation_config: GenerationConfig = "auto",
    overrides: ModelOverrides = _NO_OVERRIDES,
    quantize: AtLoad | StoredFormat | None = None,
) -> ModelFolder:
    """Read config.json and the headers of the weights; raises StartError with file, what is wrong and what to do."""
    path, raw, is_text_part = read_config(folder)
    model_type = str(raw.get("model_type"))
    is_native = model_impl != "transformers" and (model_impl == "native" or model_type in FAMILIES)
    if not is_native and not _is_borrowable(raw):
        if model_type in FAMILIES:
            raise StartError(
                f"--model-impl transformers: the installed transformers has no decoder of model_type {model_type!r}; "
                "leave it out"
            )
        raise not_supported(path, raw)
    if raw.get("auto_map"):
        logger.info(
            "%s names code of the folder (auto_map), which is not run: %s is known here", path, model_type
        )
    if overrides.rope is not None and not is_native:
        raise StartError(
            f"--rope-scaling and --rope-factor are for models with a row here, and {model_type} is computed by the "
            "code of transformers; change rope_scaling in its config.json instead"
        )
    spec = load_spec(folder, overrides.rope) if is_native else None
    generation = _generation(folder, generation_config, overrides)
    quantization = read_declared(folder, raw)
    if quantization is not None and not is_native:
        raise StartError(
            f"{quantization.settings.path}: quantized weights are for models with a row here, and {model_type} is "
            "computed by the code of transformers; use the model in 16 bits"
        )
    at_load = None if quantize is None else check_asked(quantize, quantization, path)
    if at_load is not None and not is_native:
        raise StartError(
            f"--quantize {at_load} is for models with a row here, and {model_type} is computed by the code of "
            "transformers; leave it out"
        )
    if at_load is not None and load_format == "dummy":
        raise StartError(
            f"--quantize {at_load} needs weights, and --load-format dummy reads none; leave one out"
        )
    if quantization is not None and load_format == "dummy":
        logger.warning(
            "--load-format dummy makes weights of 16 bits, not what %s says", quantization.settings.path
        )
    checkpoint = None if load_format == "dummy" else open_gguf(folder, raw) or Checkpoint.open(folder)
    if checkpoint is not None and is_text_part:
        checkpoint = checkpoint.of_text()
    if spec is not None and checkpoint is not None:
        check_names(quantization, checkpoint)
        may_be_tied = is_text_part and raw.get("tie_word_embeddings") is None
        spec, checkpoint = _as_stored(spec, checkpoint, may_be_tied)
    dtype = read_dtype(Fields(raw, path))
    return ModelFolder(folder, model_type, dtype, spec, checkpoint, quantization, at_load, generation)


def _as_stored(spec: ModelSpec, checkpoint: Checkpoint, may_be_tied: bool) -> tuple[ModelSpec, Checkpoint]:
    """Both, as what the files hold says. `may_be_tied`: config.json does not say whether the head is the embedding."""
    checkpoint = checkpoint.under(spec.names.written) if spec.names.written else checkpoint
    if readers := _keys_of_readers(spec):
        checkpoint = checkpoint.without(readers)
    _check_counts(spec, checkpoint)
    if may_be_tied:
        spec = _tied_without_head(spec, checkpoint)
    return _with_experts_as_stored(spec, checkpoint), checkpoint


def _generation(
    folder: Path, generation_config: GenerationConfig, overrides: ModelOverrides
) -> GenerationDefaults | None:
    own = read_generation_defaults(folder) if generation_config == "auto" else None
    if overrides.generation is None:
        return own
    return override_generation_defaults(own or GenerationDefaults(), overrides.generation)


def _is_borrowable(raw: dict[str, Any]) -> bool:
    model_type = raw.get("model_type")
    with _PARSING:
        return isinstance(model_type, str) and model_type in _causal_types()


@cache
def _causal_types() -> frozenset[str]:
    """The types of causal models that the installed transformers has. Its table is parsed: an import takes seconds."""
    found = find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        return frozenset()
    source = Path(found.submodule_search_locations[0]) / "models/auto/modeling_auto.py"
    for statement in ast.parse(source.read_bytes()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == _CAUSAL_MODELS:
            constants = (node.value for node in ast.walk(statement.value) if isinstance(node, ast.Constant))
            return frozenset(value for value in constants if isinstance(value, str))
    return frozenset()


def _tied_without_head(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """A whole model may have its embedding as the head, though its text part alone would not; here nothing says."""
    has_head = any(name.startswith(f"{spec.names.lm_head}.") for name in checkpoint.entries)
    return spec if has_head else replace(spec, tied_embeddings=True)


def _keys_of_readers(spec: ModelSpec) -> set[str]:
    """Modules that files may have of layers that read keys and values of another one, and that nobody needs."""
    names = spec.names
    readers = (number for number, layer in enumerate(spec.layers) if layer.kv_source is not None)
    return {
        names.layer.format(number) + name
        for number in readers
        for name in (names.key, names.value, names.key_norm)
    }


def _with_experts_as_stored(spec: ModelSpec, checkpoint: Checkpoint) -> ModelSpec:
    """Where a family has inputs first in the tensors of all experts, some tools write outputs first, as others do."""
    moe = spec.moe
    if moe is None or not moe.inputs_first:
        return spec
    sparse = next(number for number, layer in enumerate(spec.layers) if layer.is_sparse)
    name = spec.names.layer.format(sparse) + spec.names.experts_down
    outputs_first = (moe.num_experts, spec.hidden_size, moe.expert_size)
    is_turned = checkpoint.has(name) and checkpoint.require_name(name).shape == outputs_first
    return replace(spec, moe=replace(moe, inputs_first=False)) if is_turned else spec


def _check_counts(spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """The last layer and the last expert must be there, so that no number in config.json makes a start long."""
    names, last = spec.names, spec.names.layer.format(spec.num_layers - 1)
    has_mixer = spec.layers[-1].has_attention or spec.layers[-1].is_recurrent
    norm = names.attention_input_norm if spec.norm.has_weights else ""
    first = norm or names.output if has_mixer else names.mlp_input_norm
    checkpoint.require_module(f"{last}{first}")
    sparse = [number for number, layer in enumerate(spec.layers) if layer.is_sparse]
    if spec.moe is None or not sparse:
        return
    prefix = names.layer.format(sparse[-1])
    if spec.moe.flat:
        checkpoint.require_name(prefix + names.expert_up)
        return
    stacked = prefix + names.experts_gate_up
    if not checkpoint.has(stacked) and not checkpoint.has(f"{stacked}_blocks"):
        checkpoint.require_module(f"{prefix}{names.expert_up.format(spec.moe.num_experts - 1)}")
