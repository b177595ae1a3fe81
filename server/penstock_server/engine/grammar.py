"""Constrained decoding: which tokens the rows of a step may choose, computed beside the steps.

A mask is computed from the moment the host knows the token before it, or that one is drafted. A step waits for masks a
little longer than the model runs, at most; a slot whose mask is late sits the step out, and the others go on. What is
drafted without a mask does not count.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from penstock_server.base.errors import ErrorCode, SlotRefused
from penstock_server.engine.constrained_slot import ConstrainedSlot
from penstock_server.engine.grammar_threads import GrammarThreads
from penstock_server.engine.matchers import Matchers
from penstock_server.engine.plan import Admit, Drafts
from penstock_server.engine.step import SampledRow

# How long a step waits for masks when the model has run: those of many rows take some milliseconds together.
_PATIENCE_S = 0.005
# How long a step waits to know which drafts are legal; of the others nothing is computed. It takes some microseconds
# once the mask before them is there.
_PATIENCE_WITH_DRAFTS_S = 0.001

# The time that the masks of one step may take together on the step's own thread; other threads compute the rest.
_MOST_AT_ONCE_S = 0.0004

# Why a slot fails where another rank knows it.
_TOO_LONG = "the grammar takes too long"

# Gives every rank's numbers, on every rank.
Gather = Callable[..., list[tuple[int, ...]]]


class MaskState(IntEnum):
    """The state of a mask; the greatest state of all ranks holds."""

    READY = 0
    LATE = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Which tokens are allowed in the constrained rows of a step."""

    rows: list[int]
    # [len(rows), ceil(vocab_size / 32)] int32, one bit per token, least significant first.
    bits: torch.Tensor
    # Rows whose grammar cannot continue, with the reason.
    errors: dict[int, str] = field(default_factory=dict)
    # Rows whose mask was not there in time: what is chosen for them is dropped.
    late: set[int] = field(default_factory=set)
    # Rows behind drafts whose mask was not there in time: nobody waits for what is dropped.
    void: set[int] = field(default_factory=set)

    def chosen(self, rows: list[SampledRow]) -> list[int]:
        """The first rows of the slots that get a token."""
        firsts = [row for row in self.rows if not rows[row].is_behind_draft]
        return [row for row in firsts if row not in self.errors and row not in self.late]


class Choice(NamedTuple):
    """A row of a step that chose a token under a grammar, the first of its slot."""

    row: int
    slot: ConstrainedSlot


def tell(told: Iterable[tuple[ConstrainedSlot, list[int]]]) -> None:
    """Tell slots the tokens that were chosen for them; the next masks are begun, and the first brief ones are there."""
    room_s, at_once = _MOST_AT_ONCE_S, []
    for slot, token_ids in told:
        brief_s = slot.brief_s
        if brief_s is not None and brief_s <= room_s:
            room_s -= brief_s
            at_once.append((slot, token_ids))
        else:
            slot.tell(token_ids)
    for slot, token_ids in at_once:
        slot.tell(token_ids, is_at_once=True)


class Grammars:
    """The constrained slots of a shard. Used from the step loop's thread only."""

    def __init__(
        self,
        tokenizer_path: Path,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        threads: GrammarThreads | None = None,
        is_patient: bool = False,
    ) -> None:
        """`is_patient`: a step waits for its masks until they are there or failed, so that no slot is ever late."""
        self.matchers = Matchers(tokenizer_path, vocab_size, eos_token_ids)
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._slots: dict[int, ConstrainedSlot] = {}
        # Started with the first grammar: most servers never need them.
        self._threads = threads
        self.is_patient = is_patient

    def clear(self) -> None:
        """Forget every slot."""
        for slot in list(self._slots):
            self.retire(slot)

    def retire(self, slot: int) -> None:
        """Forget a slot's grammar, if it has one."""
        constrained = self._slots.pop(slot, None)
        if constrained is not None:
            constrained.is_retired = True

    def slots(self) -> Iterable[int]:
        """The slots with grammars."""
        return self._slots

    def admit(self, admit: Admit) -> None:
        """Start building a slot's matcher; an error in its text is reported with its first mask."""
        if admit.grammar is None:
            return
        if not self.matchers.available:
            raise SlotRefused("grammar is not supported by this shard", ErrorCode.GRAMMAR)
        self._threads = self._threads or GrammarThreads()
        generated = admit.token_ids[admit.prompt_len :]
        build = partial(self.matchers.build, admit.grammar)
        width = -(-self._vocab_size // 32)
        is_kept = self.matchers.has(admit.grammar)
        self._slots[admit.slot] = ConstrainedSlot(
            build, width, self._threads, self._eos_token_ids, is_kept, generated
        )

    def draftable(self, slots: Iterable[int], gather: Gather) -> set[int]:
        """The slots among these for which tokens may be drafted on every rank."""
        constrained = [slot for slot in slots if slot in self._slots]
        willing = self._least(constrained, lambda slot: slot.may_draft, gather)
        return set(slots) - {slot for slot, number in zip(constrained, willing, strict=True) if not number}

    def constrained(self, slots: Iterable[int]) -> dict[int, ConstrainedSlot]:
        """The slots among these that have a grammar."""
        return {slot: self._slots[slot] for slot in slots if slot in self._slots}

    def legal(self, drafts: Drafts, gather: Gather) -> Drafts:
        """The leading drafts that are known to be legal; the masks behind them are begun."""
        constrained = [slot for slot, token_ids in drafts.items() if token_ids and slot in self._slots]
        if not constrained:
            return drafts
        aheads = [self._slots[slot].look_ahead(drafts[slot]) for slot in constrained]
        wait([ahead.num_legal for ahead in aheads], _PATIENCE_WITH_DRAFTS_S)
        cut = {}
        numbers = self._least(constrained, lambda slot: slot.num_legal, gather)
        for slot, ahead, number in zip(constrained, aheads, numbers, strict=True):
            ahead.num_wanted = number
            cut[slot] = drafts[slot][:number]
        return {**drafts, **cut}

    def follow(self, drafts: Drafts) -> None:
        """These drafts, which another rank found legal, are computed: the masks behind them are begun."""
        for slot, token_ids in drafts.items():
            if token_ids and slot in self._slots:
                self._slots[slot].look_ahead(token_ids)

    def _least(
        self, slots: list[int], find: Callable[[ConstrainedSlot], int], gather: Gather
    ) -> tuple[int, ...]:
        """For each slot the least of what the ranks find."""
        if not slots:
            return ()
        found = gather(*(find(self._slots[slot]) for slot in slots))
        return tuple(min(of_ranks) for of_ranks in zip(*found, strict=True))

    def pending_masks(self, rows: list[SampledRow], num_rows: int) -> "PendingMasks | None":
        """The masks of the constrained rows, which are being computed; None when there are none.

        `num_rows`: how many the step has, `rows` and others.
        """
        if self._threads is not None:
            self._threads.set_long_jobs_apart()
        constrained = {
            number: self._slots[row.slot] for number, row in enumerate(rows) if row.slot in self._slots
        }
        if not constrained:
            return None
        behind = {number: rows[number].num_drafts_before for number in constrained}
        return PendingMasks(constrained, behind, num_rows, self.is_patient)

    def still_late(self, slots: list[int], is_alone: bool, gather: Gather) -> set[int]:
        """The slots among these that sat out a step and whose mask is still not there: nothing is computed for them.

        `is_alone`: the step has nothing else to compute, so that it is better to wait a little.
        """
        constrained = {slot: self._slots[slot] for slot in slots if slot in self._slots}
        if not constrained:
            return set()
        jobs = [slot.job.done for slot in constrained.values()]
        wait(jobs, _PATIENCE_S if is_alone else 0, return_when=FIRST_COMPLETED)
        states = zip(constrained, _agreed(constrained.values(), gather), strict=True)
        return {slot for slot, state in states if state == MaskState.LATE}

    def choose(self, rows: list[SampledRow], masks: GrammarMasks) -> list[Choice]:
        """The rows that choose a token under these masks; their slots are to be told it."""
        choices = [Choice(number, self._slots[rows[number].slot]) for number in masks.chosen(rows)]
        for choice in choices:
            choice.slot.choose()
        return choices


class PendingMasks:
    """The masks of a step's constrained rows, which threads compute."""

    def __init__(
        self,
        rows: dict[int, ConstrainedSlot],
        num_behind: dict[int, int],
        num_rows: int,
        is_patient: bool = False,
    ) -> None:
        """`num_behind`: behind how many drafts of its slot each row is."""
        self._slots = {number: slot for number, slot in rows.items() if not num_behind[number]}
        self._behind = {
            number: (slot, num_behind[number]) for number, slot in rows.items() if num_behind[number]
        }
        self._is_patient = is_patient
        self._is_alone = len(rows) == num_rows
        # When those that are not there are late; known when the model has run.
        self._deadline: float | None = None

    def are_due(self, is_running: Callable[[], bool]) -> bool:
        """Whether the step is to go on. `is_running`: whether the model still runs, so that waiting costs nothing."""
        if all(job.done() for job in self._jobs()):
            return True
        if self._is_patient:
            return all(slot.is_ready or slot.failure() for slot in self._slots.values())
        if self._deadline is None:
            if is_running():
                return False
            self._deadline = time.monotonic() + _PATIENCE_S
        return time.monotonic() >= self._deadline or not self._is_waited_for()

    def wait(self, at_most_s: float) -> None:
        """Wait so long at most, and not once the step can go on because of a mask."""
        missing = [job for job in self._jobs(of_waited_for=True) if not job.done()]
        anything = [job for job in self._jobs() if not job.done()]
        if self._deadline is not None:
            at_most_s = min(at_most_s, max(0.0, self._deadline - time.monotonic()))
        wait(missing or anything, at_most_s, ALL_COMPLETED if missing else FIRST_COMPLETED)

    def collect(self, gather: Gather) -> GrammarMasks:
        """The masks that are there; the others are late, on every rank."""
        states = _agreed(self._slots.values(), gather)
        void = self._void(gather)
        masks = GrammarMasks([*self._slots, *self._behind], self._bits(states, void), void=void)
        for (number, slot), state in zip(self._slots.items(), states, strict=True):
            slot.on_step(is_late=state == MaskState.LATE)
            if state == MaskState.LATE:
                masks.late.add(number)
            elif state == MaskState.FAILED:
                slot.fail(_TOO_LONG)
                masks.errors[number] = slot.failure()
        return masks

    def told(self, late: Iterable[int], void: Iterable[int], failed: Iterable[int]) -> GrammarMasks:
        """The states of the masks in the stage that used them; they have no bits here."""
        masks = GrammarMasks([*self._slots, *self._behind], torch.empty(0), late=set(late), void=set(void))
        for number, slot in self._slots.items():
            slot.on_step(is_late=number in masks.late)
        for number in failed:
            self._slots[number].fail(_TOO_LONG)
            masks.errors[number] = self._slots[number].failure()
        return masks

    def _void(self, gather: Gather) -> set[int]:
        """The rows behind drafts without a mask, on any rank."""
        if not self._behind:
            return set()
        found = gather(*(int(_has_mask(slot, behind)) for slot, behind in self._behind.values()))
        held = (min(of_ranks) for of_ranks in zip(*found, strict=True))
        return {number for number, is_held in zip(self._behind, held, strict=True) if not is_held}

    def _is_waited_for(self) -> bool:
        """Whether a step whose model has run waits a little for what is missing."""
        if not all(job.done() for job in self._jobs(of_waited_for=True)):
            return True
        # A step without a token for anybody is of no use.
        return self._is_alone and not any(slot.is_ready for slot in self._slots.values())

    def _jobs(self, of_waited_for: bool = False) -> list[Future[str]]:
        slots = [slot for slot in self._slots.values() if slot.is_waited_for or not of_waited_for]
        aheads = [slot.ahead.last for slot in slots if slot.ahead is not None]
        return [slot.job.done for slot in slots] + [job for job in aheads if job is not None]

    def _bits(self, states: list[MaskState], void: set[int]) -> torch.Tensor:
        """A copy: the next job of a slot writes into the place of its mask."""
        firsts = [slot.bits for slot in self._slots.values()]
        aheads = [(slot.ahead, count) for slot, count in self._behind.values()]
        behind = [firsts[0] if ahead is None else ahead.masks[count - 1] for ahead, count in aheads]
        bits = torch.stack([*firsts, *behind])
        known = [state == MaskState.READY for state in states] + [row not in void for row in self._behind]
        for number, is_known in enumerate(known):
            if not is_known:
                # The token of a row that is late or failed is not used, but one must be found.
                bits[number] = -1
        return bits


def wait_with_drafts(jobs: Iterable[Future[str]]) -> None:
    """Wait as long as a step does for what is computed along its drafts."""
    wait(jobs, _PATIENCE_WITH_DRAFTS_S)


def _agreed(slots: Iterable[ConstrainedSlot], gather: Gather) -> list[MaskState]:
    """The state of each mask that all ranks use: it depends on a clock, so the ranks have to agree."""
    states = zip(*gather(*(_state(slot) for slot in slots)), strict=True)
    return [MaskState(max(of_ranks)) for of_ranks in states]


def _has_mask(slot: ConstrainedSlot, num_drafts: int) -> bool:
    return slot.ahead is not None and slot.ahead.num_masks >= num_drafts


def _state(slot: ConstrainedSlot) -> MaskState:
    if slot.failure():
        return MaskState.FAILED
    return MaskState.READY if slot.is_ready else MaskState.LATE
