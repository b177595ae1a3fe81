"""Whether the weights of one model folder can take the place of those of another: nothing may differ but numbers.

Reads no tensor: config.json and the headers of the files are what they are compared by.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from penstock_server.architectures.fields import read_json
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint, Entry
from penstock_server.files.gguf.tensors import GgufEntry
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.quantization import Declared

# Who wrote the file, and when; ends of sequences stay those of the start.
_UNIMPORTANT = ("_name_or_path", "transformers_version", "eos_token_id", "pad_token_id", "bos_token_id")
_MAX_SHOWN = 80


def check_same(served: ModelFolder, other: ModelFolder) -> None:
    """Raise StartError unless the model of the other folder is the one that is served, with other numbers."""
    old, new = replaceable(served), replaceable(other)
    _differs(other, "model_type", other.model_type, served.model_type)
    _differs(other, "dtype", other.dtype, served.dtype)
    _check_facts(served, other)
    _differs(other, "quantization", _settings(other.quantization), _settings(served.quantization))
    _check_tensors(old, new)


def replaceable(folder: ModelFolder) -> Checkpoint:
    """The tensors of a folder; raises StartError where there are none whose numbers can be replaced."""
    if folder.checkpoint is None:
        raise StartError("with --load-format dummy there are no weights that others could replace")
    if any(isinstance(entry, GgufEntry) for entry in folder.checkpoint.entries.values()):
        raise StartError(
            "weights of GGUF files cannot be replaced; start the server with a safetensors model"
        )
    return folder.checkpoint


def _check_facts(served: ModelFolder, other: ModelFolder) -> None:
    """Compare the specs of models of our decoder; for a model of transformers, all of config.json."""
    if served.spec is None or other.spec is None:
        found, expected = _config_of(other), _config_of(served)
        for key in sorted(found.keys() | expected.keys()):
            _differs(other, key, found.get(key), expected.get(key))
        return
    for field in fields(served.spec):
        if field.name != "eos_token_ids":
            _differs(other, field.name, getattr(other.spec, field.name), getattr(served.spec, field.name))


def _config_of(folder: ModelFolder) -> dict[str, Any]:
    raw = read_json(folder.path / "config.json")
    return {key: value for key, value in raw.items() if key not in _UNIMPORTANT}


def _settings(declared: Declared | None) -> object:
    return None if declared is None else (declared.method, declared.settings.raw)


def _differs(other: ModelFolder, name: str, found: object, expected: object) -> None:
    if found != expected:
        raise StartError(
            f"{other.path / 'config.json'}: {name} is {_shown(found)}, and {_shown(expected)} of the weights in use"
        )


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} …"


def _check_tensors(served: Checkpoint, other: Checkpoint) -> None:
    for name in served.entries:
        if name not in other.entries:
            raise StartError(f"{other.folder}: tensor {name} is in no file, and the weights in use have it")
    for name, entry in other.entries.items():
        check_tensor(served.entries, f"{entry.file}: tensor {name}", name, entry.dtype, entry.shape)


def check_tensor(
    served: Mapping[str, Entry], shown: str, name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    """Raise StartError unless the model has a tensor of this name, type and shape. `shown`: what messages call it."""
    expected = served.get(name)
    if expected is None:
        raise StartError(f"{shown} is not in the weights in use")
    if shape != expected.shape:
        raise StartError(f"{shown} has shape {list(shape)}, and {list(expected.shape)} in the weights in use")
    if dtype != expected.dtype:
        raise StartError(f"{shown} is {dtype}, and {expected.dtype} in the weights in use")
