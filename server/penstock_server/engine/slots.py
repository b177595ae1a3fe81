"""The slots: what the host knows of each, how a plan changes them, and the tensors of a step over them.

The host mirror is deterministic: it follows from the plans alone, never from sampled ids, so that every rank refuses
the same spans and a plan can be taken in before the one before it has finished on the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from penstock_kernels import AttentionSpans

from penstock_server.base.errors import ErrorCode, SlotRefused
from penstock_server.engine.checks import check_admit, check_blocks, check_copies, require
from penstock_server.engine.grammar import GrammarMasks, Grammars
from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import (
    Admit,
    Append,
    Feature,
    Plan,
    SamplingParams,
    SlotError,
    Span,
)
from penstock_server.engine.rows import Rows
from penstock_server.engine.step import PromptRows, SampledRow, SamplingInput, Step
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.upload import Upload


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

    def stage(self, spans: list[Span], num_rows: int | None = None) -> Step:
        """The tensors of a step over these spans, which `select` accepted.

        With `num_rows` all are decodes, for a step of so many rows whose other tensors are made on the device.
        """
        upload = Upload()
        if num_rows is None:
            self._send_spans(upload, spans)
        else:
            self._send_padded(upload, spans, num_rows)
        sampling = [span for span in spans if span.end == self.states[span.slot].length]
        self._send_sampling(upload, spans, sampling)
        *sent, sampled_rows, slots, lengths, prompt_lens = upload.send(self.device)
        return Step(
            forward=self._forward_input(spans, *sent) if num_rows is None else None,
            decode=None if num_rows is None else sent[0].view(2, num_rows),
            num_spans=len(spans),
            sampled_rows=sampled_rows,
            sampling=self._sampling_input(sampling, slots, lengths, prompt_lens),
            prompt_rows=self._prompt_rows(spans),
        )

    def commit(self, sampling: SamplingInput, token_ids: torch.Tensor, masks: GrammarMasks | None) -> None:
        """Append sampled tokens on the device, where the next step finds them. token_ids: [num_rows] int64."""
        self.rows.tokens.index_put_((sampling.slots, sampling.lengths), token_ids.int())
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
        self.rows.admit(admit)

    def _append(self, append: Append) -> None:
        state = self._held(append.slot)
        check_blocks(append.block_ids, state.num_blocks, self.limits)
        self.rows.append(append.slot, state.num_blocks, append.block_ids)
        state.num_blocks += len(append.block_ids)

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

    def _send_padded(self, upload: Upload, spans: list[Span], num_rows: int) -> None:
        """Slots and starts; rows beyond the spans are the spare one's."""
        missing = num_rows - len(spans)
        slots = [span.slot for span in spans] + [self.rows.spare] * missing
        upload.add(slots + [span.start for span in spans] + [0] * missing)

    def _send_spans(self, upload: Upload, spans: list[Span]) -> None:
        """Slots, starts and lengths."""
        upload.add(span.slot for span in spans)
        upload.add(span.start for span in spans)
        upload.add(span.length for span in spans)

    def _forward_input(
        self, spans: list[Span], slots: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor
    ) -> ForwardInput:
        spans_seen = AttentionSpans(
            query_lens=tuple(span.length for span in spans),
            context_lens=tuple(span.end for span in spans),
            block_tables=self.rows.block_table.index_select(0, slots),
            block_size=self.limits.block_size,
            unbatched=self.batch_invariant,
        )
        if all(span.length == 1 for span in spans):
            rows, positions, tables = slots, starts, spans_seen.block_tables
        else:
            num_tokens = sum(spans_seen.query_lens)
            of_span = torch.repeat_interleave(
                torch.arange(len(spans), device=self.device), lens, output_size=num_tokens
            )
            first_rows = lens.cumsum(0) - lens
            positions = torch.arange(num_tokens, device=self.device) + (starts - first_rows)[of_span]
            rows, tables = slots[of_span], spans_seen.block_tables[of_span]
        return ForwardInput(
            self.rows.token_ids(rows, positions),
            positions,
            cache_positions(tables, positions, self.limits.block_size),
            spans_seen,
        )

    def unwritten(self, spans: list[Span]) -> torch.Tensor:
        """Flat cache positions in the slots' blocks from where each span begins: nothing there is theirs yet."""
        size, parts = self.limits.block_size, []
        for span in spans:
            end = self.states[span.slot].num_blocks * size
            positions = torch.arange(span.start, end, device=self.device)
            parts.append(self.rows.block_table[span.slot, positions // size].long() * size + positions % size)
        return torch.cat(parts)

    def _send_sampling(self, upload: Upload, spans: list[Span], sampling: list[Span]) -> None:
        """Rows of the hidden states that predict a token, and of these slots, lengths and prompt lengths."""
        ends = list(accumulate(span.length for span in spans))
        states = [self.states[span.slot] for span in sampling]
        upload.add(
            end - 1
            for span, end in zip(spans, ends, strict=True)
            if span.end == self.states[span.slot].length
        )
        upload.add(span.slot for span in sampling)
        upload.add(state.length for state in states)
        upload.add(state.prompt_len for state in states)

    def _sampling_input(
        self, spans: list[Span], slots: torch.Tensor, lengths: torch.Tensor, prompt_lens: torch.Tensor
    ) -> SamplingInput:
        rows, table = [self._sampled_row(span) for span in spans], self.rows
        is_plain = not any(row.features for row in rows)
        return SamplingInput(
            rows=rows,
            slots=slots,
            lengths=lengths,
            prompt_lens=prompt_lens,
            params=table.no_params if is_plain else table.params.index_select(0, slots),
            seeds=table.no_seeds if is_plain else table.seeds.index_select(0, slots),
        )

    def _sampled_row(self, span: Span) -> SampledRow:
        state = self.states[span.slot]
        features, num_generated = state.features, state.length - state.prompt_len
        if features and num_generated >= state.sampling.min_new_tokens:
            features &= ~Feature.SUPPRESSED
        return SampledRow(span.slot, state.length, num_generated, features, state.sampling)

    def reads_prompt(self, span: Span) -> bool:
        """Whether log probabilities of prompt tokens are to be told of a span."""
        state = self.states[span.slot]
        return state.sampling.prompt_logprobs and span.start < state.prompt_len - 1

    def _prompt_rows(self, spans: list[Span]) -> list[PromptRows]:
        found, first_row = [], 0
        for span in spans:
            if self.reads_prompt(span):
                state = self.states[span.slot]
                # The row at position p predicts the token at p + 1; the last prompt token predicts what is sampled.
                count = min(span.end, state.prompt_len - 1) - span.start
                num_top = state.sampling.num_top_logprobs
                found.append(PromptRows(span.slot, span.start + 1, first_row, count, num_top))
            first_row += span.length
        return found


def cache_positions(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Where tokens' keys and values go, as flat cache positions. tables: [num_tokens, max_blocks]."""
    blocks = tables.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    return blocks * block_size + positions % block_size
