"""Opens the folder of what drafts tokens for a model, and refuses what cannot be right. Needs no torch.

That is another model, or heads that read the hidden states of the model.
"""

import filecmp
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.fields import read_json
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.config import ServerConfig
from penstock_server.base.errors import StartError
from penstock_server.files.eagle_folder import EagleFolder, is_eagle, open_eagle
from penstock_server.files.medusa_folder import MedusaFolder, has_heads, open_medusa
from penstock_server.files.model_folder import ModelFolder, open_folder
from penstock_server.files.mtp_folder import MtpFolder, open_mtp
from penstock_server.files.token_map import TokenMap, map_tokens, vocabulary_of


class DraftModelFolder(NamedTuple):
    """A second model, and from the tokens of the first to its own; None: they are the same."""

    model: ModelFolder
    tokens: TokenMap | None


DraftFolder = DraftModelFolder | MedusaFolder | EagleFolder | MtpFolder

# The words of `--speculation` for the contents of a draft folder.
_MODEL, _MEDUSA, _EAGLE, _MTP = "draft", "medusa", "eagle", "mtp"


def open_draft_folder(config: ServerConfig, target: ModelFolder) -> DraftFolder | None:
    """The contents of the folder of --draft-model; None if there is none. Raises StartError, which names the flag."""
    path = config.draft_model_path
    if config.drafter == _MTP:
        return _open_mtp(path or config.model_path, target)
    if path is None:
        return None
    try:
        return _open(config, path, target)
    except StartError as error:
        raise StartError(f"--draft-model: {error}") from None


def _open_mtp(path: Path, target: ModelFolder) -> MtpFolder:
    try:
        spec = _read_by_heads(target)
        _refuse_window(spec)
        return open_mtp(path, target, spec)
    except StartError as error:
        raise StartError(f"--speculation mtp: {error}") from None


def _open(config: ServerConfig, path: Path, target: ModelFolder) -> DraftFolder:
    raw = read_json(path / "config.json")
    kind = _kind(path, raw)
    if config.drafter not in ("ngram", kind):
        raise StartError(
            f"{path} is for --speculation {kind}, and --speculation {config.drafter} was asked for"
        )
    if kind == _MEDUSA:
        return open_medusa(path, raw, _read_by_heads(target))
    if kind == _EAGLE:
        spec = _read_by_heads(target)
        _refuse_window(spec)
        return open_eagle(path, raw, spec)
    folder = open_folder(path, config.load_format)
    spec = _checked(folder)
    if target.spec is not None:
        _refuse_window(target.spec)
    tokens = _translated(path / "tokenizer.json", config.tokenizer_path, spec, target.spec)
    return DraftModelFolder(folder, tokens)


def _kind(path: Path, raw: dict[str, Any]) -> str:
    if has_heads(path, raw):
        return _MEDUSA
    return _EAGLE if is_eagle(path, raw) else _MODEL


def _read_by_heads(target: ModelFolder) -> ModelSpec:
    """The model whose hidden states heads read; raises StartError where they cannot."""
    if target.spec is None:
        raise StartError(
            f"heads read hidden states of models with a row here, and {target.model_type} is computed by the code of "
            "transformers; use --speculation ngram"
        )
    return target.spec


def _checked(folder: ModelFolder) -> ModelSpec:
    """The spec of the draft model; raises StartError unless all that it remembers is what it attends to."""
    spec, path = folder.spec, folder.path
    if spec is None:
        raise StartError(
            f"{path}: {folder.model_type} is computed by the code of transformers; a draft model needs a row here"
        )
    if spec.num_recurrent_layers:
        raise StartError(
            f"{path}: layers of {folder.model_type} keep a state, which cannot go back behind a wrong draft"
        )
    return spec


def _refuse_window(target: ModelSpec) -> None:
    if target.attention_window is not None:
        raise StartError(
            f"{target.model_type} gives blocks back behind its window of {target.attention_window} tokens, which a "
            "draft model still reads; use --speculation ngram"
        )


def _translated(own: Path, other: Path, spec: ModelSpec, target: ModelSpec | None) -> TokenMap | None:
    """From the tokens of the model to those of the draft model; None where the same numbers are the same tokens.

    One vocabulary may be longer. Raises StartError where the tokens cannot be compared, or differ too much.
    """
    if not own.is_file() or not other.is_file():
        if target is None or spec.vocab_size != target.vocab_size:
            size = "an unknown number" if target is None else target.vocab_size
            raise StartError(
                f"{own.parent}: its vocabulary has {spec.vocab_size} tokens, that of the model {size}, and there are "
                "no two tokenizer.json to compare"
            )
        return None
    if filecmp.cmp(own, other, shallow=False):
        return None
    mine, theirs = vocabulary_of(own), vocabulary_of(other)
    if all(mine[number] == theirs[number] for number in mine.keys() & theirs.keys()):
        return None
    return map_tokens(other, own, spec.vocab_size)
