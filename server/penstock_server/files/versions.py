"""Which weights and which tokenizer a shard has: replicas that differ in them must not take each other's requests.

Not every byte is read: tensors of the same names, types and shapes, none of which differs in its middle, count as the
same. That tells models and fine-tunes of them apart; it is no protection against somebody who wants to deceive.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from penstock_server.files.checkpoint import Entry
from penstock_server.files.gguf.folder import GGUF_FILE
from penstock_server.files.gguf.tensors import GgufEntry
from penstock_server.files.model_folder import ModelFolder

# Read of each tensor.
_SAMPLE_BYTES = 64


class Versions(NamedTuple):
    """Hexadecimal digits; the tokenizer's are none where a shard has no tokenizer."""

    weights: str
    tokenizer: str


def read_versions(folder: ModelFolder, tokenizer: Path) -> Versions:
    """The versions of the files as they are now: to be called when the weights were just read."""
    return Versions(_of_weights(folder), _of_file(tokenizer) if tokenizer.is_file() else "")


def _of_weights(folder: ModelFolder) -> str:
    config = json.loads((folder.path / "config.json").read_bytes())
    config.pop(GGUF_FILE, None)  # a path, which may be another on each machine
    parts = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    entries = folder.checkpoint.entries.values() if folder.checkpoint is not None else ()
    for file, tensors in groupby(sorted(entries, key=attrgetter("file", "begin")), attrgetter("file")):
        for sample in _samples(file, list(tensors)):
            parts.update(sample)
    return parts.hexdigest()[:32]


def _samples(file: Path, tensors: list[Entry]) -> Iterable[bytes]:
    size, end = file.stat().st_size, max(entry.end for entry in tensors)
    # A header of safetensors lies before its tensors, and nothing behind them.
    base = 0 if isinstance(tensors[0], GgufEntry) else size - end
    with file.open("rb") as stream:
        for entry in tensors:
            yield f"{entry.name} {entry.dtype} {entry.shape}".encode()
            middle = base + (entry.begin + entry.end) // 2
            yield os.pread(stream.fileno(), min(_SAMPLE_BYTES, base + entry.end - middle), middle)


def _of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:32]
