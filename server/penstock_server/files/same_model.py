"""Whether the weights of one model folder can take the place of those of another: nothing may differ but numbers.

Reads no tensor: config.json and the headers of the files are what they are compared by.
"""

from dataclasses import fields
from typing import Any

from penstock_server.architectures.fields import read_json
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.gguf.tensors import GgufEntry
from penstock_server.files.model_folder import ModelFolder
from penstock_server.files.quantization import Declared

# Who wrote the file, and when; ends of sequences stay those of the start.
_UNIMPORTANT = ("_name_or_path", "transformers_version", "eos_token_id", "pad_token_id", "bos_token_id")
_MAX_SHOWN = 80


def check_same(served: ModelFolder, other: ModelFolder) -> None:
    """Raise StartError unless the model of the other folder is the one that is served, with other numbers."""
    old, new = _safetensors(served), _safetensors(other)
    _differs(other, "model_type", other.model_type, served.model_type)
    _differs(other, "dtype", other.dtype, served.dtype)
    _check_facts(served, other)
    _differs(other, "quantization", _settings(other.quantization), _settings(served.quantization))
    _check_tensors(old, new)


def _safetensors(folder: ModelFolder) -> Checkpoint:
    if folder.checkpoint is None:
        raise StartError("with --load-format dummy there are no weights that others could replace")
    if any(isinstance(entry, GgufEntry) for entry in folder.checkpoint.entries.values()):
        raise StartError(
            "weights of GGUF files cannot be replaced; start the server with a safetensors model"
        )
    return folder.checkpoint


def _check_facts(served: ModelFolder, other: ModelFolder) -> None:
    """Of our decoder what its row says; of a model of transformers all that config.json has."""
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
    for name, expected in served.entries.items():
        entry = other.entries.get(name)
        if entry is None:
            raise StartError(f"{other.folder}: tensor {name} is in no file, and the weights in use have it")
        if entry.shape != expected.shape:
            raise StartError(
                f"{entry.file}: tensor {name} has shape {list(entry.shape)}, "
                f"and {list(expected.shape)} in the weights in use"
            )
        if entry.dtype != expected.dtype:
            raise StartError(
                f"{entry.file}: tensor {name} is {entry.dtype}, and {expected.dtype} in the weights in use"
            )
    for name, entry in other.entries.items():
        if name not in served.entries:
            raise StartError(f"{entry.file}: tensor {name} is not in the weights in use")
