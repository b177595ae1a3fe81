"""Reads what a folder says of a head that guesses several tokens in one pass: P-EAGLE. Needs no torch.

Its tensors are those of the third version of EAGLE, of one layer or more, and `mask_hidden`. In the form of
`speculators` config.json has the kind, the token and how many tokens it was trained to guess, in the other form only
the token.
"""

from typing import Any, NamedTuple

from penstock_server.architectures.fields import Fields
from penstock_server.files.checkpoint import Checkpoint

MASK = "mask_hidden"
# The names of the token in config.json, by who wrote it.
_TOKEN_NAMES = ("mask_token_id", "pard_token", "ptd_token_id")


class ParallelFacts(NamedTuple):
    """The special fields of such a head."""

    # The shape of `mask_hidden`: the hidden states that stand for those of positions not computed yet.
    mask_shape: tuple[int, ...]
    # The token that stands for theirs.
    mask_token_id: int
    # How many tokens it was trained to guess; None where the folder does not say it.
    max_drafts: int | None


def read_parallel(fields: Fields, checkpoint: Checkpoint, num_states: int, vocab_size: int) -> ParallelFacts:
    """Raises StartError unless both stand-ins fit. `num_states`: numbers of all hidden states of a position."""
    entry = checkpoint.require_name(MASK)
    if entry.shape[-1:] != (num_states,) or any(size != 1 for size in entry.shape[:-1]):
        raise fields.error(
            MASK, list(entry.shape), f"a tensor of {num_states} numbers, as many as fc.weight reads"
        )
    name = next((name for name in _TOKEN_NAMES if fields.get(name) is not None), _TOKEN_NAMES[0])
    token_id = fields.integer(name, low=0)
    if token_id >= vocab_size:
        raise fields.error(name, token_id, f"one of the model's {vocab_size} tokens")
    return ParallelFacts(entry.shape, token_id, _max_drafts(fields))


def _max_drafts(fields: Fields) -> int | None:
    """The number of drafts in the first proposal method, which others use, too; None where it is not told."""
    said = fields.get("speculators_config")
    methods: Any = said.get("proposal_methods") if isinstance(said, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    if not isinstance(first, dict) or first.get("speculative_tokens") is None:
        return None
    return Fields(first, fields.path).integer("speculative_tokens")
