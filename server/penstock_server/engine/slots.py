"""The slots: what the host knows of each, and how a plan changes them.

What it knows is deterministic: it follows from the plans alone, never from sampled ids, so that every rank refuses
the same spans, and a plan can be applied while the step of the plan before it still runs on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from penstock_server.base.errors import ErrorCode, SlotRefused
from penstock_server.engine.checks import check_admit, check_blocks, check_copies, require
from penstock_server.engine.exclusions import Exclusions, exclusions_of
from penstock_server.engine.grammar import Choice, GrammarMasks, Grammars
from penstock_server.engine.limits import Limits
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.plan import Admit, Append, Plan, Span
from penstock_server.engine.rows import Rows
from penstock_server.engine.sampling_params import EXCLUDING, Feature, SamplingParams
from penstock_server.engine.step import SamplingInput


@dataclass(slots=True)
class SlotState:
    """What the host knows of one slot in use."""

    length: int
    prompt_len: int
    num_blocks: int
    sampling: SamplingParams
    features: Feature
    exclusions: Exclusions | None = None
    # Whether it sat its last step out: plans in flight may count on a token that it did not get.
    is_late: bool = False
    # Why the slot is refused, until it is retired: plans in flight may depend on what was refused.
    refusal: SlotError | None = None


class Slots:
    """All slots of a shard."""

    def __init__(
        self, limits: Limits, grammars: Grammars, device: torch.device, batch_invariant: bool = False
    ) -> None:
        self.limits = limits
        self.grammars = grammars
        self.device = device
        self.batch_invariant = batch_invariant
        self.states: dict[int, SlotState] = {}
        self.rows = Rows(limits, device)

    def clear(self) -> None:
        """Forget every slot. The rows are overwritten when they are given out again."""
        self.states.clear()
        self.grammars.clear()

    def apply(self, plan: Plan) -> dict[int, SlotError]:
        """Retire, admit and append; the errors are the first of each slot. Raises InvalidPlan, changing nothing."""
        check_copies(plan, self.limits)
        errors: dict[int, SlotError] = {}
        for slot in plan.retired:
            self.grammars.retire(slot)
            if self.states.pop(slot, None) is None:
                self._refuse(errors, slot, f"slot {slot} is not in use, it cannot be retired")
        for admit in plan.admitted:
            self._guard(errors, admit.slot, partial(self._admit, admit))
        for append in plan.appended:
            self._guard(errors, append.slot, partial(self._append, append))
        self.rows.flush()
        return errors

    def select(self, plan: Plan, errors: dict[int, SlotError]) -> list[Span]:
        """The spans of the plan that are valid; adds the errors of the others."""
        accepted: dict[int, Span] = {}
        budget = self.limits.max_step_tokens
        for span in plan.spans:
            if self._is_void(span):
                continue
            if span.slot in accepted:
                del accepted[span.slot]
                self._refuse(errors, span.slot, f"slot {span.slot} has two spans in one step")
            elif self._guard(errors, span.slot, partial(self._check_span, span, budget)):
                accepted[span.slot] = span
                budget -= span.length
        return list(accepted.values())

    def late_slots(self, plan: Plan, errors: dict[int, SlotError]) -> list[int]:
        """The slots for whose spans nothing is computed, because they sat out the step before."""
        return [span.slot for span in plan.spans if span.slot not in errors and self._is_void(span)]

    def commit(
        self, sampling: SamplingInput, token_ids: torch.Tensor, masks: GrammarMasks | None
    ) -> list[Choice]:
        """Append sampled tokens to the rows on the device, for the next step. token_ids: [num_rows] int64.

        Returns the choices under grammars, which are to be told when the host knows them.
        """
        self.rows.tokens.index_put_((sampling.slots, sampling.lengths), token_ids.int())
        late = masks.late if masks is not None else ()
        for number, row in enumerate(sampling.rows):
            self.states[row.slot].is_late = number in late
            self.states[row.slot].length += number not in late
        return [] if masks is None else self.grammars.choose(sampling.rows, masks)

    def _guard(self, errors: dict[int, SlotError], slot: int, change: Callable[[], None]) -> bool:
        """Run a change of one slot. A refusal becomes the error of the slot, which stays until it is retired."""
        try:
            require(
                slot < self.limits.num_slots, f"slot {slot} is not below num_slots {self.limits.num_slots}"
            )
            change()
        except SlotRefused as refused:
            self._refuse(errors, slot, str(refused), refused.code)
        # Also by an error of this plan from before the slot was admitted.
        if slot in errors and slot in self.states:
            self.states[slot].refusal = self.states[slot].refusal or errors[slot]
        return slot not in errors

    def _refuse(
        self, errors: dict[int, SlotError], slot: int, message: str, code: ErrorCode = ErrorCode.INVALID
    ) -> None:
        error = SlotError(slot, code, message)
        state = self.states.get(slot)
        if state is not None:
            error = state.refusal = state.refusal or error
        errors.setdefault(slot, error)

    def _in_use(self, slot: int) -> SlotState:
        """The state of a slot; raises SlotRefused if the slot is free or refused already."""
        state = self.states.get(slot)
        if state is None:
            raise SlotRefused(f"slot {slot} is not in use")
        if state.refusal is not None:
            raise SlotRefused(state.refusal.message, state.refusal.code)
        return state

    def _admit(self, admit: Admit) -> None:
        if admit.slot in self.states:
            raise SlotRefused(f"slot {admit.slot} is in use already")
        length = len(admit.token_ids)
        state = SlotState(
            length, admit.prompt_len, len(admit.block_ids), admit.sampling, admit.sampling.features()
        )
        self.states[admit.slot] = state
        check_admit(admit, self.limits)
        self.grammars.admit(admit)
        self.rows.admit(admit)
        if state.features & EXCLUDING:
            state.exclusions = exclusions_of(admit.sampling, self.device)

    def _is_void(self, span: Span) -> bool:
        """Whether a span begins at a token that its slot did not get."""
        state = self.states.get(span.slot)
        return state is not None and state.is_late and not state.refusal and span.start == state.length

    def _append(self, append: Append) -> None:
        state = self._in_use(append.slot)
        check_blocks(append.block_ids, state.num_blocks, self.limits)
        self.rows.append(append.slot, state.num_blocks, append.block_ids)
        state.num_blocks += len(append.block_ids)

    def _check_span(self, span: Span, budget: int) -> None:
        state = self._in_use(span.slot)
        require(span.length >= 1 and span.end <= state.length,
            f"span {span.start}..{span.end} is not within the slot's {state.length} tokens")  # fmt: skip
        require(span.end <= state.num_blocks * self.limits.block_size,
            f"span {span.start}..{span.end} needs more than the slot's {state.num_blocks} blocks")  # fmt: skip
        require(span.end < state.length or state.length < self.limits.max_sequence_len,
            f"the slot is full: max_sequence_len is {self.limits.max_sequence_len}")  # fmt: skip
        require(span.length <= budget,
            f"the step's spans are more than max_step_tokens {self.limits.max_step_tokens}")  # fmt: skip

    def reads_prompt(self, span: Span) -> bool:
        """Whether log probabilities of prompt tokens are asked for in a span."""
        state = self.states[span.slot]
        return state.sampling.prompt_logprobs and span.start < state.prompt_len - 1
