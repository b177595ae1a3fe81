"""tokenizer.json for a model folder that has a sentencepiece file only: converted by transformers, once.

The result is kept beside the hub's cache, by the content of all that it was made of: a model folder may be read-only,
and belongs to the user. Nothing in the folder is executed. The work is done by a process of its own, `python -m
penstock_server.files.convert_tokenizer FOLDER TARGET`: the libraries that read such files crash on some, and are large.
"""

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock_server.base.errors import StartError

SENTENCEPIECE = "tokenizer.model"
_PACKAGES = ("transformers", "sentencepiece")
# All that transformers reads when it makes a tokenizer.
_SOURCES = (
    SENTENCEPIECE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
)
# A minute is ten times what the largest takes.
_TIMEOUT_S = 60.0


def converted_tokenizer(folder: Path) -> Path:
    """The tokenizer.json made from the folder's tokenizer.model; raises StartError where that fails."""
    kept = _cache() / _digest(folder) / "tokenizer.json"
    if not kept.is_file():
        sys.stderr.write(f"Converting {folder / SENTENCEPIECE} to {kept}, once\n")
        _write(kept, folder)
    return kept


def _cache() -> Path:
    """The folder of converted tokenizers, beside the hub's cache."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "penstock" / "tokenizers"


def _digest(folder: Path) -> str:
    digest = hashlib.sha256(" ".join(_version(package, folder) for package in _PACKAGES).encode())
    for name in _SOURCES:
        file = folder / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


def _version(package: str, folder: Path) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise StartError(
            f"{folder} has no tokenizer.json, and {SENTENCEPIECE} is converted by {package}, which is not installed: "
            "pip install 'penstock[transformers]'"
        ) from None


def _write(target: Path, folder: Path) -> None:
    """Write the file atomically: another process may convert the same tokenizer at the same time."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
            made = Path(temporary) / target.name
            _convert_in_child(folder, made)
            os.replace(made, target)
    except OSError as error:
        raise StartError(
            f"{target} cannot be written: {error.strerror}; set HF_HOME to a folder that can"
        ) from None


def _convert_in_child(folder: Path, target: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-m",
        "penstock_server.files.convert_tokenizer",
        str(folder),
        str(target),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise refused(folder, f"it takes longer than {_TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        raise refused(folder, lines[-1] if lines else f"the conversion ended with code {done.returncode}")


def refused(folder: Path, reason: str) -> StartError:
    """The error, with what to do."""
    return StartError(
        f"{folder / SENTENCEPIECE} cannot be converted: {reason}; "
        "download the model with its tokenizer.json, or put one into the folder"
    )


def _convert(folder: Path) -> str:
    """In the child: the text of the tokenizer.json. Raises whatever the libraries raise."""
    import sentencepiece
    from transformers import AutoTokenizer

    # Other tokenizers have files of the same name; transformers' error for them is long and misleading.
    try:
        sentencepiece.SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE))
    except (RuntimeError, OSError):
        raise ValueError("it is no sentencepiece model, or cut short") from None
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    text: str = tokenizer.backend_tokenizer.to_str()
    return text


def main(folder: Path, target: Path) -> int:
    """In the child: writes the target, or the reason to stdout; returns the exit code."""
    try:
        target.write_text(_convert(folder), encoding="utf-8")
    except Exception as error:  # whatever the libraries raise, it is this file that they cannot convert
        print((str(error).strip() or type(error).__name__).splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    # No tokenizer needs it, and to import it takes transformers most of the time.
    sys.modules["torch"] = None  # type: ignore[assignment]
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
