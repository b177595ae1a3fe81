"""An adapter's folder: its two files, read once, so that what is hashed is what is used.

Pickles are refused: to read one is to run it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from penstock_server.base.errors import AdapterRefused, StartError
from penstock_server.base.regular_file import open_regular
from penstock_server.files.adapter.config import AdapterConfig, parse_config
from penstock_server.files.checkpoint import LOADABLE_DTYPES, Entry, read_header

_CONFIG = "adapter_config.json"
_TENSORS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
# A configuration with patterns for every module of a large model is a thousandth of it.
_MAX_CONFIG_BYTES = 16 << 20
# All linear layers of a 70B model at rank 256 in 32 bits are 13 GB.
_MAX_TENSOR_BYTES = 16 << 30
_PREFIX = "base_model.model."


class AdapterFolder(NamedTuple):
    """The contents of a folder. Names of tensors are those of the file, without the prefix of PEFT."""

    path: Path
    content_hash: str
    config: AdapterConfig
    entries: dict[str, Entry]
    # The content of the file of tensors.
    content: bytes

    def name_in_file(self, name: str) -> str:
        """The name that messages have."""
        return f"{self.path / _TENSORS}: tensor {_PREFIX}{name}"

    def key_in_file(self, key: str) -> str:
        """The name of a configuration key in messages."""
        return f"{self.path / _CONFIG}: {key}"


def open_adapter(path: Path) -> AdapterFolder:
    """Read and check both files. Raises AdapterRefused with the file and the tensor or key."""
    config_file, tensor_file = path / _CONFIG, path / _TENSORS
    if not path.is_dir():
        raise AdapterRefused(f"{path}: there is no such folder")
    if not tensor_file.exists() and (path / _PICKLE).exists():
        raise AdapterRefused(
            f"{path / _PICKLE}: it holds pickled weights, which can run code; save it as safetensors"
        )
    config_bytes = _read(config_file, _MAX_CONFIG_BYTES)
    try:
        config = parse_config(json.loads(config_bytes), config_file)
    except (ValueError, RecursionError):
        raise AdapterRefused(f"{config_file}: it is not valid JSON") from None
    entries = _entries(tensor_file)
    content = _read(tensor_file, _MAX_TENSOR_BYTES)
    return AdapterFolder(path, _hash(config_bytes, content), config, entries, content)


def _read(file: Path, max_bytes: int) -> bytes:
    try:
        with open_regular(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > max_bytes:
                raise AdapterRefused(f"{file}: {size} bytes are more than the {max_bytes} that are allowed")
            return stream.read(max_bytes)
    except OSError as error:
        raise AdapterRefused(f"{file}: {error.strerror}") from None


def _entries(file: Path) -> dict[str, Entry]:
    if not file.is_file():
        raise AdapterRefused(f"{file}: there is no such file")
    try:
        found = read_header(file)
    except StartError as error:
        raise AdapterRefused(str(error)) from None
    for name, entry in found.items():
        if not name.startswith(_PREFIX):
            raise AdapterRefused(f"{file}: tensor {name} does not begin with {_PREFIX}")
        if entry.dtype not in LOADABLE_DTYPES:
            raise AdapterRefused(f"{file}: tensor {name} is {entry.dtype}, not {', '.join(LOADABLE_DTYPES)}")
    if not found:
        raise AdapterRefused(f"{file}: it has no tensors")
    return {name.removeprefix(_PREFIX): entry for name, entry in found.items()}


def _hash(config: bytes, tensors: bytes) -> str:
    """The hash of both files; their lengths keep the border between them."""
    found = hashlib.sha256(len(config).to_bytes(8, "little"))
    found.update(config)
    found.update(tensors)
    return found.hexdigest()
