"""Opens a folder with heads of MEDUSA: what they are, which the tensors say better than config.json. Needs no torch.

`{head}.{layer}.linear` are the residual layers of a head; `{head}.{num_layers}`, where it is there, makes its logits.
In the second form, TGI's, the head of the model does that.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.fields import Fields
from penstock_server.architectures.spec import ModelSpec
from penstock_server.base.errors import StartError
from penstock_server.files.checkpoint import Checkpoint
from penstock_server.files.pickled import is_pickled

WEIGHTS = "medusa_lm_head.safetensors"
# Guesses of a head for one token, in a tree; published ones have 10.
MOST_GUESSES = 16
PICKLED = "medusa_lm_head.pt"
_LAYER = re.compile(r"(\d+)\.(\d+)\.linear\.weight")


class MedusaFolder(NamedTuple):
    """The contents of a folder with Medusa heads, which lie beside a model or alone."""

    checkpoint: Checkpoint
    num_heads: int
    num_layers: int
    # Whether each head makes its logits itself.
    has_own_logits: bool
    # The ways of the tree that the heads draft, by the ranks of their guesses, the most important first; none: a chain.
    choices: tuple[tuple[int, ...], ...] = ()


def has_heads(folder: Path, raw: dict[str, Any]) -> bool:
    """Whether a folder is one of heads, by its config.json and its files."""
    return "medusa_num_heads" in raw or any((folder / name).exists() for name in (WEIGHTS, PICKLED))


def open_medusa(folder: Path, raw: dict[str, Any], target: ModelSpec) -> MedusaFolder:
    """The heads of a folder; raises StartError unless they were made for a model of these sizes."""
    file = folder / WEIGHTS
    if not file.is_file():
        if (folder / PICKLED).is_file():
            raise is_pickled(folder / PICKLED, file)
        raise StartError(f"{folder} has no {WEIGHTS}; download it again")
    checkpoint = Checkpoint.of_file(file)
    found = [tuple(map(int, match.groups())) for match in map(_LAYER.fullmatch, checkpoint.entries) if match]
    if not found:
        raise StartError(f"{file}: it has no tensor 0.0.linear.weight, so it has no heads of MEDUSA")
    num_heads, num_layers = (1 + max(numbers) for numbers in zip(*found, strict=True))
    fields = Fields(raw, folder / "config.json")
    least = fields.integer("medusa_num_heads", default=1)
    if num_heads < least:
        raise StartError(f"{file}: it has {num_heads} heads, but medusa_num_heads in config.json is {least}")
    own = f"0.{num_layers}.weight"
    _check_sizes(checkpoint, own, target)
    return MedusaFolder(checkpoint, num_heads, num_layers, checkpoint.has(own), _choices(fields))


def _choices(fields: Fields) -> tuple[tuple[int, ...], ...]:
    """A tree as it was published: a list of ways, each a list of ranks, of which 0 is the likeliest guess of a head."""
    choices = fields.get("medusa_choices", [])
    if not isinstance(choices, list) or not all(map(_is_way, choices)):
        raise fields.error(
            "medusa_choices", choices, f"a list of lists of whole numbers from 0 to {MOST_GUESSES - 1}"
        )
    return tuple(tuple(way) for way in choices)


def _is_way(way: Any) -> bool:
    return (
        isinstance(way, list)
        and bool(way)
        and all(type(rank) is int and 0 <= rank < MOST_GUESSES for rank in way)
    )


def _check_sizes(checkpoint: Checkpoint, own: str, target: ModelSpec) -> None:
    size = checkpoint.require_name("0.0.linear.weight").shape[-1]
    if size != target.hidden_size:
        raise StartError(
            f"{checkpoint.folder}: its heads read hidden states of {size} numbers, those of the model have "
            f"{target.hidden_size}; use heads that were trained for this model"
        )
    if checkpoint.has(own) and checkpoint.entries[own].shape[0] != target.vocab_size:
        raise StartError(
            f"{checkpoint.folder}: its heads know {checkpoint.entries[own].shape[0]} tokens, the model "
            f"{target.vocab_size}; use heads that were trained for this model"
        )
