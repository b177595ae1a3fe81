"""Fits the tokens that a model guessed to its vocabulary, and makes all ranks agree on them; for all drafters."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from penstock_server.engine.plan import Drafts
from penstock_server.network.distributed import Group


def fitted(logits: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """With as many columns as the model has: what pads one of the vocabularies is never drafted, or cut off."""
    missing = vocab_size - logits.shape[1]
    return (
        F.pad(logits, (0, missing), value=-torch.inf) if missing > 0 else logits[:, :vocab_size].contiguous()
    )


def agreed(owners: Sequence[int], ids: Sequence[torch.Tensor], group: Group) -> Drafts:
    """The tokens on the host, on all ranks those of the first. `owners`: the slot of each, in the order of `ids`."""
    return handed_out(owners, torch.cat(list(ids)).tolist() if ids else [], group)


def handed_out(owners: Sequence[int], ids: Sequence[int], group: Group) -> Drafts:
    """Does what `agreed` does, for tokens that are on the host."""
    drafts: dict[int, tuple[int, ...]] = {}
    if not ids:
        return drafts
    for slot, token_id in zip(owners, group.gather_numbers(*ids)[0], strict=True):
        drafts[slot] = (*drafts.get(slot, ()), token_id)
    return drafts
