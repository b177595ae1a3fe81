"""Guesses of tokens one by one, where grammars say which tokens may come: a model does not know them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import torch

from penstock_server.engine.constrained_slot import Ahead, ConstrainedSlot
from penstock_server.engine.grammar import GrammarMasks, wait_with_drafts
from penstock_server.engine.plan import Drafts
from penstock_server.engine.sampling import choose
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import SamplingInput
from penstock_server.network.distributed import Group
from penstock_server.network.upload import to_device


class _Along:
    """A slot with a grammar, and how far it is guessed."""

    def __init__(self, slot: ConstrainedSlot, most: int) -> None:
        self.slot = slot
        self.ahead: Ahead = slot.guess(most)
        # Whether no more guesses count.
        self.has_ended = False

    @property
    def job(self) -> Future[str]:
        """Done when the mask of the next guess is there, or will not come."""
        last = self.ahead.last
        return self.slot.job.done if last is None else last

    def mask(self) -> torch.Tensor | None:
        """The mask of the next guess, if it is known. [width] int32."""
        number = len(self.ahead.drafts)
        if number == 0:
            return self.slot.bits if self.slot.is_ready and not self.slot.failure() else None
        return self.ahead.masks[number - 1] if self.ahead.num_masks == number else None


class Guided:
    """The guesses of one step, on all ranks those of the first where a grammar guides them."""

    def __init__(self, slots: Slots, group: Group) -> None:
        self._slots = slots
        self._group = group
        self._along: dict[int, _Along] = {}

    def begin(self, numbers: Mapping[int, int]) -> bool:
        """So many tokens are guessed for each slot; whether a grammar guides any."""
        constrained = self._slots.grammars.constrained(numbers)
        self._along = {slot: _Along(found, numbers[slot]) for slot, found in constrained.items()}
        return bool(self._along)

    def goes_on(self, slot: int) -> bool:
        """Whether a further guess for this slot may count."""
        return slot not in self._along or not self._along[slot].has_ended

    def choose(self, slots: Sequence[int], logits: torch.Tensor, sampling: SamplingInput) -> torch.Tensor:
        """The next guess of each of these slots, by its logits, which its row now has."""
        tokens = self._slots.rows.tokens
        rows = [row for row, slot in enumerate(slots) if slot in self._along and self.goes_on(slot)]
        ids = self._choose_guided(slots, rows, logits, sampling) if rows else choose(logits, sampling, tokens)
        tokens.index_put_((sampling.slots, sampling.lengths), ids.int())
        return ids

    def _choose_guided(
        self, slots: Sequence[int], rows: list[int], logits: torch.Tensor, sampling: SamplingInput
    ) -> torch.Tensor:
        """Does what `choose` does, where grammars guide the guesses of these rows."""
        along = [self._along[slots[row]] for row in rows]
        wait_with_drafts(each.job for each in along)
        known = [each.mask() for each in along]
        ids = choose(logits, sampling, self._slots.rows.tokens, _masks(rows, known))
        index = to_device(rows, torch.int64, ids.device)
        taken = self._take(along, known, ids[index].tolist())
        ids[index] = to_device(taken, ids.dtype, ids.device)
        return ids

    def cut(self, drafts: Drafts) -> Drafts:
        """Without the guesses that do not count."""
        guided = {
            slot: drafts[slot][: len(along.ahead.drafts)]
            for slot, along in self._along.items()
            if slot in drafts
        }
        return {**drafts, **guided}

    def _take(self, along: list[_Along], known: list[torch.Tensor | None], mine: list[int]) -> list[int]:
        """Go on from the guesses of the first rank, which are returned; without a mask they do not count."""
        are_known = [int(mask is not None) for mask in known]
        first = self._group.gather_numbers(*are_known, *mine)[0]
        ids = list(first[len(along) :])
        for each, is_known, token_id in zip(along, first, ids, strict=False):
            each.has_ended = not (is_known and each.slot.go_on(token_id))
        return ids


def _masks(rows: list[int], known: list[torch.Tensor | None]) -> GrammarMasks | None:
    """The masks that are known; None if there are none."""
    pairs = [(row, mask) for row, mask in zip(rows, known, strict=True) if mask is not None]
    if not pairs:
        return None
    return GrammarMasks([row for row, _ in pairs], torch.stack([mask for _, mask in pairs]))
