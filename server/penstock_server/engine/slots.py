"""The slots: what the host knows of each, and how a plan changes them.

What it knows is deterministic: it follows from the plans alone, never from sampled ids, so that every rank refuses
the same spans, and a plan can be applied while the step of the plan before it still runs on the device.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

import torch
from penstock_kernels.base.slot_columns import SlotKind
from penstock_kernels.native.decode_step import DecodeStep
from penstock_kernels.native.recording import Calls

from penstock_server.base.errors import ErrorCode, SlotRefused
from penstock_server.engine.adapters import Adapters
from penstock_server.engine.checks import check_admit, check_blocks, check_copies, check_snapshots, require
from penstock_server.engine.draft_states import DraftStates
from penstock_server.engine.drafted import Drafted
from penstock_server.engine.exclusions import exclusions_of
from penstock_server.engine.grammar import Choice, GrammarMasks, Grammars
from penstock_server.engine.limits import Limits
from penstock_server.engine.outcome import SlotError
from penstock_server.engine.plan import Admit, Append, Appends, Drafts, Plan, Span, Spans, with_drafts
from penstock_server.engine.rows import Rows
from penstock_server.engine.sampling_params import EXCLUDING
from penstock_server.engine.slot_table import Decodes, SlotState, SlotTable
from penstock_server.engine.snapshots import Snapshots
from penstock_server.engine.step import SampledRow, SamplingInput


class Slots:
    """All slots of a shard."""

    def __init__(
        self,
        limits: Limits,
        grammars: Grammars,
        adapters: Adapters,
        device: torch.device,
        batch_invariant: bool = False,
        snapshots: Snapshots | None = None,
        draft_states: DraftStates | None = None,
    ) -> None:
        """`snapshots`: a slot keeps a state beside its blocks, so its spans must follow each other; then tokens are
        drafted only with `draft_states`."""
        self.limits = limits
        self.grammars = grammars
        self.adapters = adapters
        self.device = device
        self.batch_invariant = batch_invariant
        self.states: dict[int, SlotState] = {}
        self.snapshots = snapshots
        self.draft_states = draft_states
        self._table = SlotTable(limits, is_gapless=snapshots is not None)
        self.rows = Rows(limits, device)

    @property
    def can_draft(self) -> bool:
        """Whether slots can go back behind a wrong draft."""
        return self.snapshots is None or self.draft_states is not None

    def affordable(self, wanted: Mapping[int, int]) -> Mapping[int, int]:
        """The numbers of tokens to be drafted, by slot, limited to what can be computed in a step."""
        return wanted if self.draft_states is None else self.draft_states.affordable(wanted)

    def clear(self) -> None:
        """Forget every slot. The rows are overwritten when they are given out again."""
        if self.draft_states is not None:
            self.draft_states.clear()
        if self.snapshots is not None:
            self.snapshots.clear(self.states)
        self.states.clear()
        self._table.clear()
        self.grammars.clear()
        self.adapters.clear()

    def apply(self, plan: Plan) -> dict[int, SlotError]:
        """Retire, admit and append; the errors are the first of each slot. Raises InvalidPlan, changing nothing."""
        check_copies(plan, self.limits)
        check_snapshots(plan, self.limits)
        errors: dict[int, SlotError] = {}
        for slot in plan.retired:
            self.grammars.retire(slot)
            self.adapters.retire(slot)
            if self.states.pop(slot, None) is None:
                self._refuse(errors, slot, f"slot {slot} is not in use, it cannot be retired")
            else:
                self._table.free(slot)
        if self.snapshots is not None:
            self.snapshots.retire(plan.retired)
        for admit in plan.admitted:
            self._guard(errors, admit.slot, partial(self._admit, admit))
        if not (isinstance(plan.appended, Appends) and self._append_all(plan.appended)):
            for append in plan.appended:
                self._guard(errors, append.slot, partial(self._append, append))
        self.rows.flush()
        if self.snapshots is not None:
            self.snapshots.restore_begun()
        return errors

    def settled(self, plan: Plan) -> Spans | None:
        """The spans of a plan, of which the open ones, without drafts, begin where their slots stand.

        None: `select` has to look at them, as drafts would not fit.
        """
        spans = Spans.of(plan.spans)
        if not plan.open_drafts:
            return spans
        numbers = self._table.settled(spans.numbers, plan.open_drafts)
        return None if numbers is None else Spans(numbers)

    def decodes(self, spans: Spans, num_rows: int, drafted: Drafted | None = None) -> Decodes | None:
        """All of these spans as arrays, if they are decodes of which some need no more; `select` takes any."""
        return self._table.decodes(spans.numbers, num_rows, drafted)

    def decode_step(self, calls: Calls, inputs: torch.Tensor, logits: torch.Tensor) -> DecodeStep:
        """Steps over these slots by a recorded one, see `PlainSteps`."""
        return self._table.decode_step(calls, inputs, logits, self.rows.kept)

    def select(self, plan: Plan, errors: dict[int, SlotError]) -> list[Span]:
        """The spans of the plan that are valid; adds the errors of the others.

        Open spans begin where their slots stand, and take what they need of the step's budget with all drafts.
        """
        accepted: dict[int, Span] = {}
        budget = self.limits.max_step_tokens
        for span in plan.spans:
            if self._is_void(span, plan):
                continue
            if span.slot in accepted:
                del accepted[span.slot]
                self._refuse(errors, span.slot, f"slot {span.slot} has two spans in one step")
                continue
            max_drafts = plan.open_drafts.get(span.slot)
            check = partial(self._check_span, span, budget)
            if max_drafts is not None:
                check = partial(self._check_open, span, max_drafts, budget)
            if self._guard(errors, span.slot, check):
                state = self.states[span.slot]
                accepted[span.slot] = span if max_drafts is None else Span(span.slot, state.length - 1, 1)
                state.computed = accepted[span.slot].end
                budget -= span.length + (max_drafts or 0)
        return list(accepted.values())

    def extend(self, spans: Sequence[Span], drafts: Drafts) -> list[Span]:
        """The spans with the tokens drafted for their slots, which are written into the rows."""
        extended = with_drafts(spans, drafts)
        for span in extended:
            self.rows.write_tokens(span.slot, span.known_end, span.drafts)
        self.rows.flush()
        if self.draft_states is not None:
            self.draft_states.begin(extended)
        return extended

    def waiting(self, plan: Plan, errors: Container[int]) -> list[int]:
        """The slots with spans that sat out the step before, whose token is to be chosen again."""
        late = [slot for slot in self.grammars.slots() if self.states[slot].is_late]
        if not late:
            return []
        late = [slot for slot in late if slot not in errors]
        spans = [span for span in Spans.of(plan.spans).of_slots(late) if not self._is_void(span, plan)]
        return [span.slot for span in spans if not self.states[span.slot].refusal]

    def void_slots(self, plan: Plan, errors: Container[int]) -> list[int]:
        """The slots for whose spans nothing is computed, because they sat out the step before."""
        return [span.slot for span in plan.spans if span.slot not in errors and self._is_void(span, plan)]

    def is_valid(self, slot: int) -> bool:
        """Whether a slot is in use and was not refused."""
        state = self.states.get(slot)
        return state is not None and state.refusal is None

    def commit(
        self, sampling: SamplingInput, token_ids: torch.Tensor, masks: GrammarMasks | None
    ) -> list[Choice]:
        """Append sampled tokens to the rows on the device, for the next step. token_ids: [num_rows] int64.

        Behind a draft they count only if it was right, which `accept` is told. In a step of decodes the sampler
        appended them.

        Returns the choices under grammars, which are to be told when the host knows them.
        """
        if sampling.decodes is not None:
            self._table.grow(sampling.decodes.growing)
            return [] if sampling.apart is None else self._grow(sampling.apart.rows, masks)
        self.rows.tokens.index_put_((sampling.slots, sampling.lengths), token_ids.int())
        return self._grow(sampling.rows, masks)

    def _grow(self, rows: list[SampledRow], masks: GrammarMasks | None) -> list[Choice]:
        """The slots of these rows have a token more, but for the late ones."""
        late = masks.late if masks is not None else ()
        for number, row in enumerate(rows):
            if not row.is_behind_draft:
                self.states[row.slot].computed = row.position
                self.states[row.slot].is_late = number in late
                self.states[row.slot].length += number not in late
        return [] if masks is None else self.grammars.choose(rows, masks)

    def accept(self, slot: int, num_drafts: int) -> None:
        """So many of the tokens drafted for a slot in the last step were right."""
        self.states[slot].length += num_drafts
        self.states[slot].computed += num_drafts
        if self.draft_states is not None:
            self.draft_states.accept(slot, num_drafts)

    def settle(self) -> None:
        """All drafts of the last step are accepted or not."""
        if self.draft_states is not None:
            self.draft_states.settle()

    def keep_snapshots(self, plan: Plan, spans: Sequence[Span]) -> None:
        """Launch the copies of the states that a plan keeps behind its spans, which are computed now.

        Behind an open span only an end of a block is kept; where tokens are drafted, when it is known which are right.
        """
        if self.snapshots is None or not plan.snapshots:
            return
        places: Mapping[int, int] = plan.snapshots
        if self.draft_states is not None:
            places = self.draft_states.postpone(places)
        if plan.open_drafts:
            spans = [span for span in spans if self._is_kept(span, plan)]
        self.snapshots.keep(spans, places)

    def _is_kept(self, span: Span, plan: Plan) -> bool:
        return span.slot not in plan.open_drafts or span.end % self.limits.block_size == 0

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
        kind = SlotKind.PLAIN if admit.grammar is None else SlotKind.MASKED
        kind = SlotKind.OTHER if admit.adapter_id else kind
        state = self._table.use(admit.slot, len(admit.token_ids), admit.prompt_len, admit.sampling, kind)
        state.num_blocks = len(admit.block_ids)
        self.states[admit.slot] = state
        check_admit(admit, self.limits)
        if admit.adapter_id:
            prompt = admit.token_ids[: admit.prompt_len]
            state.adapter = self.adapters.admit(admit.slot, admit.adapter_id, prompt)
        self.grammars.admit(admit)
        if admit.snapshot is not None:
            if self.snapshots is None:
                raise SlotRefused("the model keeps no states, so a slot cannot begin with one")
            state.computed = self.snapshots.begin(admit)
        self.rows.admit(admit)
        if state.features & EXCLUDING:
            state.exclusions = exclusions_of(admit.sampling, self.device)

    def _is_void(self, span: Span, plan: Plan) -> bool:
        """Whether a span begins at a token that its slot did not get. An open one begins where the slot stands."""
        state = self.states.get(span.slot)
        if state is None or not state.is_late or state.refusal:
            return False
        return span.start == state.length and span.slot not in plan.open_drafts

    def _append(self, append: Append) -> None:
        state = self._in_use(append.slot)
        check_blocks(append.block_ids, state.num_blocks, self.limits)
        self.rows.append(append.slot, state.num_blocks, append.block_ids)
        state.num_blocks += len(append.block_ids)

    def _append_all(self, appends: Appends) -> bool:
        """Append to several slots at once. False, and nothing is changed, unless all can be."""
        if not len(appends):
            return True
        if self.device.type == "cpu" and self._table.append_here(appends, self.rows.block_table):
            return True
        firsts = self._table.append(appends)
        if firsts is None:
            return False
        self.rows.append_all(appends, firsts)
        return True

    def _check_span(self, span: Span, budget: int) -> None:
        state = self._in_use(span.slot)
        require(span.length >= 1 and span.end <= state.length,
            f"span {span.start}..{span.end} is not within the slot's {state.length} tokens")  # fmt: skip
        require(
            span.start == state.computed or not self._table.is_gapless,
            f"span {span.start}..{span.end} does not follow the slot's state, which is that of {state.computed} tokens",
        )
        require(span.end <= state.num_blocks * self.limits.block_size,
            f"span {span.start}..{span.end} needs more than the slot's {state.num_blocks} blocks")  # fmt: skip
        require(span.end < state.length or state.length < self.limits.max_sequence_len,
            f"the slot is full: max_sequence_len is {self.limits.max_sequence_len}")  # fmt: skip
        require(span.length <= budget,
            f"the step's spans are more than max_step_tokens {self.limits.max_step_tokens}")  # fmt: skip

    def _check_open(self, span: Span, max_drafts: int, budget: int) -> None:
        state, length = self._in_use(span.slot), 1 + max_drafts
        require(
            state.length - 1 == state.computed or not self._table.is_gapless,
            f"the slot's {state.length} tokens do not follow its state, which is that of {state.computed}",
        )
        require(span.length == 1 and span.start >= state.length - 1,
            f"open span {span.start}..{span.end} is not a decode of the slot's {state.length} tokens")  # fmt: skip
        require(state.length - 1 + length <= state.num_blocks * self.limits.block_size,
            f"{max_drafts} drafts need more than the slot's {state.num_blocks} blocks")  # fmt: skip
        require(state.length + length <= self.limits.max_sequence_len,
            f"{max_drafts} drafts do not fit: max_sequence_len is {self.limits.max_sequence_len}")  # fmt: skip
        require(length <= budget,
            f"the step's spans are more than max_step_tokens {self.limits.max_step_tokens}")  # fmt: skip

    def use_adapters(self, spans: Sequence[Span]) -> bool:
        """Whether an adapter acts at any token of these spans."""
        return any(self.states[span.slot].adapter.acts_at(span.end) for span in spans)

    def reads_prompt(self, span: Span) -> bool:
        """Whether log probabilities of prompt tokens are asked for in a span."""
        state = self.states[span.slot]
        return state.sampling.prompt_logprobs and span.start < state.prompt_len - 1
