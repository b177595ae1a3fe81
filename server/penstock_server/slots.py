"""The persistent rows: what a shard remembers of each slot, on the host and on the device, and how a plan changes it.

The host mirror is deterministic: it follows from the plans alone, never from sampled ids, so that every rank refuses
the same spans and a plan can be taken in before the one before it has finished on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

import torch
from penstock_kernels import AttentionSpans

from penstock_server.checks import Limits, check_admit, check_blocks, check_copies, require
from penstock_server.errors import SlotRefused
from penstock_server.grammar import GrammarMasks, Grammars
from penstock_server.plan import Admit, Append, ErrorCode, Feature, Plan, SamplingParams, SlotError, Span
from penstock_server.step import ForwardInput, PromptRows, SampledRow, SamplingInput, Step


class Column(IntEnum):
    """Columns of `Slots.params`. A top_k that float32 cannot hold exactly is beyond any vocabulary."""

    TEMPERATURE = 0
    TOP_K = 1
    TOP_P = 2
    MIN_P = 3
    TYPICAL_P = 4
    REPETITION_PENALTY = 5
    FREQUENCY_PENALTY = 6
    PRESENCE_PENALTY = 7
    WATERMARK_DELTA = 8
    WATERMARK_GAMMA = 9


@dataclass(slots=True)
class SlotState:
    """The host's mirror of one occupied slot."""

    length: int
    prompt_len: int
    num_blocks: int
    sampling: SamplingParams
    features: Feature
    # Why the slot is refused. It stays so until it is retired: plans in flight build on what was refused.
    refusal: SlotError | None = None


class Slots:
    """All rows of a shard."""

    def __init__(
        self, limits: Limits, grammars: Grammars, device: torch.device, batch_invariant: bool = False
    ) -> None:
        self.limits = limits
        self.grammars = grammars
        self.device = device
        self.batch_invariant = batch_invariant
        self.states: dict[int, SlotState] = {}
        self.tokens = torch.zeros(limits.num_slots, limits.max_sequence_len, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(limits.num_slots, dtype=torch.int64, device=device)
        self.prompt_lens = torch.zeros(limits.num_slots, dtype=torch.int64, device=device)
        self.block_table = torch.zeros(limits.num_slots, limits.max_blocks, dtype=torch.int32, device=device)
        self.params = torch.zeros(limits.num_slots, len(Column), device=device)
        self.seeds = torch.zeros(limits.num_slots, dtype=torch.int64, device=device)

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
        added = [
            append
            for append in plan.appended
            if self._guard(errors, append.slot, partial(self._append, append))
        ]
        self._write_appended(added)
        return errors

    def select(self, plan: Plan, errors: dict[int, SlotError]) -> list[Span]:
        """The plan's spans that may run; adds the errors of the others."""
        accepted: dict[int, Span] = {}
        budget = self.limits.max_step_tokens
        for span in plan.spans:
            if span.slot in accepted:
                del accepted[span.slot]
                self._refuse(errors, span.slot, f"slot {span.slot} has two spans in one step")
            elif self._guard(errors, span.slot, partial(self._check_span, span, budget)):
                accepted[span.slot] = span
                budget -= span.length
        return list(accepted.values())

    def stage(self, spans: list[Span]) -> Step:
        """The tensors of a step over these spans, which `select` accepted."""
        slots = torch.tensor([span.slot for span in spans], device=self.device)
        block_tables = self.block_table.index_select(0, slots)
        spans_seen = AttentionSpans(
            query_lens=tuple(span.length for span in spans),
            context_lens=tuple(span.end for span in spans),
            block_tables=block_tables,
            block_size=self.limits.block_size,
            unbatched=self.batch_invariant,
        )
        return Step(
            forward=self._forward_input(spans, slots, spans_seen),
            sampled_rows=self._sampled_rows(spans),
            sampling=self._sampling_input(
                [span for span in spans if span.end == self.states[span.slot].length]
            ),
            prompt_rows=self._prompt_rows(spans),
        )

    def commit(self, sampling: SamplingInput, token_ids: torch.Tensor, masks: GrammarMasks | None) -> None:
        """Append sampled tokens on the device, where the next step finds them. token_ids: [num_rows] int64."""
        self.tokens[sampling.slots, sampling.lengths] = token_ids.int()
        self.lengths[sampling.slots] = sampling.lengths + 1
        for row in sampling.rows:
            self.states[row.slot].length += 1
        if masks is not None:
            self.grammars.advance(sampling.rows, token_ids.tolist(), masks)

    def _guard(self, errors: dict[int, SlotError], slot: int, change: Callable[[], None]) -> bool:
        """Run a change of one slot; what it refuses becomes that slot's error, and sticks."""
        try:
            require(
                slot < self.limits.num_slots, f"slot {slot} is not below num_slots {self.limits.num_slots}"
            )
            change()
        except SlotRefused as refused:
            self._refuse(errors, slot, str(refused), refused.code)
        if slot in errors and slot in self.states:  # also by what was wrong before it was admitted
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

    def _held(self, slot: int) -> SlotState:
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
        self._write_row(admit)

    def _write_row(self, admit: Admit) -> None:
        slot, length, params = admit.slot, len(admit.token_ids), admit.sampling
        self.tokens[slot, :length] = torch.tensor(admit.token_ids, dtype=torch.int32)
        self.block_table[slot, : len(admit.block_ids)] = torch.tensor(admit.block_ids, dtype=torch.int32)
        self.lengths[slot] = length
        self.prompt_lens[slot] = admit.prompt_len
        self.seeds[slot] = params.seed - 2**64 if params.seed >= 2**63 else params.seed
        columns = [float(getattr(params, column.name.lower())) for column in Column]
        self.params[slot] = torch.tensor(columns)

    def _append(self, append: Append) -> None:
        state = self._held(append.slot)
        check_blocks(append.block_ids, state.num_blocks, self.limits)
        state.num_blocks += len(append.block_ids)

    def _write_appended(self, appended: list[Append]) -> None:
        blocks = [block for append in appended for block in append.block_ids]
        if not blocks:
            return
        rows: list[int] = []
        columns: list[int] = []
        ends = {append.slot: self.states[append.slot].num_blocks for append in appended}
        for append in reversed(appended):  # the last append of a slot ends where its blocks end
            begin = ends[append.slot] - len(append.block_ids)
            columns[:0] = range(begin, ends[append.slot])
            rows[:0] = [append.slot] * len(append.block_ids)
            ends[append.slot] = begin
        index = torch.tensor([rows, columns, blocks], device=self.device)
        self.block_table[index[0], index[1]] = index[2].int()

    def _check_span(self, span: Span, budget: int) -> None:
        state = self._held(span.slot)
        require(span.length >= 1 and span.end <= state.length,
            f"span {span.start}..{span.end} is not within the slot's {state.length} tokens")  # fmt: skip
        require(span.end <= state.num_blocks * self.limits.block_size,
            f"span {span.start}..{span.end} needs more than the slot's {state.num_blocks} blocks")  # fmt: skip
        require(span.end < state.length or state.length < self.limits.max_sequence_len,
            f"the slot is full: max_sequence_len is {self.limits.max_sequence_len}")  # fmt: skip
        require(span.length <= budget,
            f"the step's spans are more than max_step_tokens {self.limits.max_step_tokens}")  # fmt: skip

    def _forward_input(
        self, spans: list[Span], slots: torch.Tensor, spans_seen: AttentionSpans
    ) -> ForwardInput:
        block_size = self.limits.block_size
        starts = torch.tensor([span.start for span in spans], device=self.device)
        if all(span.length == 1 for span in spans):
            rows, positions, tables = slots, starts, spans_seen.block_tables
        else:
            lens = torch.tensor(spans_seen.query_lens, device=self.device)
            num_tokens = sum(spans_seen.query_lens)
            of_span = torch.repeat_interleave(
                torch.arange(len(spans), device=self.device), lens, output_size=num_tokens
            )
            first_rows = lens.cumsum(0) - lens
            positions = torch.arange(num_tokens, device=self.device) + (starts - first_rows)[of_span]
            rows, tables = slots[of_span], spans_seen.block_tables[of_span]
        blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
        token_ids = self.tokens[rows, positions].long()
        return ForwardInput(token_ids, positions, blocks * block_size + positions % block_size, spans_seen)

    def unwritten(self, spans: list[Span]) -> torch.Tensor:
        """Flat cache positions in the slots' blocks from where each span begins: nothing there is theirs yet."""
        size, parts = self.limits.block_size, []
        for span in spans:
            end = self.states[span.slot].num_blocks * size
            positions = torch.arange(span.start, end, device=self.device)
            parts.append(self.block_table[span.slot, positions // size].long() * size + positions % size)
        return torch.cat(parts)

    def _sampled_rows(self, spans: list[Span]) -> torch.Tensor:
        rows, row = [], -1
        for span in spans:
            row += span.length
            if span.end == self.states[span.slot].length:
                rows.append(row)
        return torch.tensor(rows, dtype=torch.int64, device=self.device)

    def _sampling_input(self, spans: list[Span]) -> SamplingInput:
        slots = torch.tensor([span.slot for span in spans], dtype=torch.int64, device=self.device)
        rows = [self._sampled_row(span) for span in spans]
        return SamplingInput(
            rows=rows,
            slots=slots,
            lengths=self.lengths[slots],
            prompt_lens=self.prompt_lens[slots],
            params=self.params[slots],
            seeds=self.seeds[slots],
        )

    def _sampled_row(self, span: Span) -> SampledRow:
        state = self.states[span.slot]
        features, num_generated = state.features, state.length - state.prompt_len
        if num_generated >= state.sampling.min_new_tokens:
            features &= ~Feature.SUPPRESSED
        return SampledRow(span.slot, state.length, num_generated, features, state.sampling)

    def _prompt_rows(self, spans: list[Span]) -> list[PromptRows]:
        found, first_row = [], 0
        for span in spans:
            state = self.states[span.slot]
            # The row at position p predicts the token at p + 1; the last prompt token predicts what is sampled.
            count = min(span.end, state.prompt_len - 1) - span.start
            if state.sampling.prompt_logprobs and count > 0:
                found.append(PromptRows(span.slot, span.start + 1, first_row, count))
            first_row += span.length
        return found
