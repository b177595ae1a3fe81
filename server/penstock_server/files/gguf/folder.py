"""The model folder of a GGUF file: config.json, which names the file, and the files of its tokenizer.

They are written beside the hub's cache at each start, which takes a second or two: nothing of an older file can stay.
"""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.gguf.config import Described
from penstock_server.files.gguf.parts import open_parts
from penstock_server.files.gguf.tensors import entries
from penstock_server.files.gguf.tokenizer import GgufTokenizer

# The key of config.json with the path of the file.
GGUF_FILE = "gguf_file"


def make_folder(file: Path, with_tokenizer: bool = True) -> Path:
    """The folder of a model, given any of its files; raises StartError where it cannot be served."""
    parts = open_parts(file.absolute())
    described = Described(parts)
    config = {**described.config(), GGUF_FILE: str(parts.first)}
    # Tensors without a name here are refused before a shard starts.
    entries(described)
    written: dict[str, dict[str, Any]] = {"config.json": config}
    if with_tokenizer or GgufTokenizer.is_in(parts):
        tokenizer = GgufTokenizer(parts)
        config["bos_token_id"], config["eos_token_id"] = tokenizer.bos_id(), tokenizer.end_ids()
    if with_tokenizer:
        tokenizer.check_size(config["vocab_size"])
        written |= {"tokenizer.json": tokenizer.tokenizer(), "tokenizer_config.json": tokenizer.settings()}
    folder = _cache() / hashlib.sha256(bytes(parts.first)).hexdigest()[:32]
    _write(folder, written)
    return folder


def open_gguf(folder: Path, raw: dict[str, Any]) -> Checkpoint | None:
    """The tensors of the file that config.json names, if it names one."""
    file = raw.get(GGUF_FILE)
    if not isinstance(file, str):
        return None
    return Checkpoint(folder, entries(Described(open_parts(Path(file)))))


def _cache() -> Path:
    """The folder of folders, beside the hub's cache."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "penstock" / "gguf"


def _write(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    """Write each file atomically: another process may write the same at the same time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with tempfile.TemporaryDirectory(dir=folder) as temporary:
                made = Path(temporary) / name
                made.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
                os.replace(made, folder / name)
    except OSError as error:
        raise StartError(
            f"{folder} cannot be written: {error.strerror}; set HF_HOME to a folder that can"
        ) from None
