"""Drafts by a head with keys and values of its own, which reads hidden states of the model: EAGLE's, and the layer of
multi-token prediction of a checkpoint.

It computes a position from the model's hidden state there and the token behind it, and so guesses the token after that;
from what it returns it goes on by itself. Where the head was not told a state, because others computed the position or
nothing was to be drafted, its keys and values are zero: it then guesses somewhat worse, and the tokens are the same.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch

from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.draft_plane import DraftPlane
from penstock_server.engine.graphed_drafter import GraphedDrafter
from penstock_server.engine.guessed import agreed, fitted, handed_out
from penstock_server.engine.guided import Guided
from penstock_server.engine.kept_states import KeptStates, Run
from penstock_server.engine.plan import Drafts, Plan, Span, Spans
from penstock_server.engine.recorded_passes import RecordedPasses, Wanted
from penstock_server.engine.recordings import can_record
from penstock_server.engine.sampling import ADJUSTING
from penstock_server.engine.slots import Slots
from penstock_server.engine.staging import Staging
from penstock_server.engine.step import Step
from penstock_server.engine.step_pact import StepPact
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.forward_input import TapShape
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead
from penstock_server.network.upload import to_device

logger = logging.getLogger(__name__)

# More positions of a slot than these are computed before the pass that drafts its first token, but for the last one.
# On CUDA a graph has one position of each slot.
_LONGEST_FIRST = 24


class _Guess(NamedTuple):
    """What a pass made of some slots: tokens, and the states to go on with."""

    ids: torch.Tensor
    given: torch.Tensor


class HeadDrafter(GraphedDrafter):
    """The head over its plane of the cache."""

    def __init__(
        self,
        head: EagleHead | MtpHead,
        cache: KVCache,
        slots: Slots,
        group: Group,
        graphs: DecodeGraphs | None,
    ) -> None:
        self.head = head
        self.cache = cache
        super().__init__(graphs)
        self.plane = DraftPlane(slots.limits)
        self._slots = slots
        self._group = group
        self._staging = Staging(slots, ahead=1)
        self._longest = 1 if slots.device.type == "cuda" else _LONGEST_FIRST
        self._guided = Guided(slots, group)
        self._pact = StepPact(group, slots.device, _report)
        self._recorded = (
            RecordedPasses(head, cache, slots) if can_record(slots.device) and head.capturable else None
        )
        self._kept = KeptStates()
        # Where only closed decodes are computed, many sequences generate, and nothing will be drafted soon.
        self._is_needed = False

    @property
    def taps(self) -> TapShape | None:
        return self.head.reads

    def follow(self, plan: Plan) -> None:
        for slot in plan.retired:
            self._kept.forget(slot)
        self.plane.follow(plan, self._slots.is_valid)
        lens = Spans.of(plan.spans).numbers[2]
        self._is_needed = bool(plan.open_drafts or plan.admitted) or bool((lens > 1).any())

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        if not self._is_needed:
            return
        # A copy, position by position. What the head makes of it can wait: in most steps nothing is drafted.
        kept, begin = states.transpose(0, 1).flatten(1).clone(), 0
        for span in spans:
            self._kept.add(span.slot, Run(span.start, kept[begin : begin + span.length]))
            begin += span.length

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        due = [
            slot for slot in self._kept.slots() if slot in wanted or self._kept.count(slot) > self._longest
        ]
        runs = {slot: run for slot in due if (run := self._known(slot)) is not None}
        numbers = {
            slot: number for slot, number in wanted.items() if number > 0 and self._can_guess(slot, runs)
        }
        long = {slot: run for slot, run in runs.items() if len(run.states) > self._longest}
        # The pass that drafts the first token computes the last position, too.
        leading = {slot: run.before(run.end - (slot in numbers)) for slot, run in long.items()}
        if leading:
            self._compute(leading)
        firsts = {
            slot: runs[slot].behind(leading[slot].end) if slot in leading else runs[slot] for slot in numbers
        }
        return self._guess(firsts, numbers)

    def rehearse(self) -> None:
        super().rehearse()
        taps = self.head.reads.taps(1, self.head.dtype, self._slots.device)
        self.head.prepare(taps.states)

    def clear(self) -> None:
        self.plane.clear()
        self._kept.clear()

    def _known(self, slot: int) -> Run | None:
        """What is kept of a slot, as the head takes it."""
        state = self._slots.states.get(slot)
        run = None if state is None else self._kept.known(slot, state.length)
        if run is None:
            return None
        taps = run.states.reshape(len(run.states), len(self.head.reads.layers), -1).transpose(0, 1)
        return Run(run.start, self.head.prepare(taps))

    def _can_guess(self, slot: int, runs: Mapping[int, Run]) -> bool:
        """Whether the state is kept that the last token of a slot was chosen from."""
        return slot in runs and runs[slot].end == self._slots.states[slot].length - 1

    def _compute(self, runs: Mapping[int, Run]) -> None:
        """Fill the plane where nothing is drafted behind it."""
        spans = [self._begun(slot, run) for slot, run in runs.items()]
        step = self._staged(spans, None)
        self._hidden(step, torch.cat([run.states for run in runs.values()]))
        self._done(runs)

    def _begun(self, slot: int, run: Run) -> Span:
        """The span of a run. What the plane lacks before it is made zero: nobody will tell its states."""
        filled = self.plane.filled(slot)
        if filled < run.start:
            self.cache.blank(self._staging.places(slot, filled, run.start))
        return Span(slot, run.start, len(run.states))

    def _done(self, runs: Mapping[int, Run]) -> None:
        """Runs are computed with."""
        for slot, run in runs.items():
            self.plane.fill(slot, run.end)
            self._kept.forget(slot)

    def _guess(self, runs: Mapping[int, Run], numbers: Mapping[int, int]) -> Drafts:
        """So many tokens for each slot, which has them in its row."""
        if not runs:
            return {}
        states, slots = self._slots.states, list(runs)
        spans = [self._begun(slot, run) for slot, run in runs.items()]
        features = reduce(or_, (states[slot].features for slot in slots))
        wanted = [Wanted(slot, states[slot].length, runs[slot], numbers[slot]) for slot in slots]
        is_plain = not (self._guided.begin(numbers) or features & ADJUSTING)
        if self._recorded is not None and is_plain and self._recorded.takes(wanted):
            return self._guess_recorded(self._recorded, wanted, bool(features))
        lengths = {slot: states[slot].length for slot in slots}
        given, passes = torch.cat([run.states for run in runs.values()]), []
        try:
            while slots:
                guess = self._pass(spans, given)
                passes.append((slots, guess.ids))
                going = (numbers[slot] > len(passes) and self._guided.goes_on(slot) for slot in slots)
                rows = [row for row, goes_on in enumerate(going) if goes_on]
                slots, given = self._going_on(slots, rows, guess.given)
                spans = [Span(slot, states[slot].length - 2, 1) for slot in slots]
        finally:
            for slot, length in lengths.items():
                states[slot].length = length
        self._done(runs)
        owners = [slot for slots, _ids in passes for slot in slots]
        return self._guided.cut(agreed(owners, [ids for _slots, ids in passes], self._group))

    def _guess_recorded(self, recorded: RecordedPasses, wanted: list[Wanted], draws: bool) -> Drafts:
        """As `_guess`, where no slot asks for more than a draw."""
        if self.cache.is_poisoned:
            spans = [Span(slot, run.start, len(run.states)) for slot, _length, run, _number in wanted]
            self.cache.poison(self._staging.unwritten(spans))
        found = recorded.guess(wanted, draws)
        self._done({each.slot: each.run for each in wanted})
        owners = [each.slot for each in wanted for _ in range(each.number)]
        return handed_out(owners, [token for tokens in found for token in tokens], self._group)

    def _going_on(
        self, slots: list[int], rows: list[int], given: torch.Tensor
    ) -> tuple[list[int], torch.Tensor]:
        """The slots in these rows, and what they go on with."""
        if len(rows) == len(slots):
            return slots, given
        index = to_device(rows, torch.int64, given.device)
        return [slots[row] for row in rows], given.index_select(0, index)

    def _pass(self, spans: list[Span], given: torch.Tensor) -> _Guess:
        """The token behind each span, which becomes the last one of its slot."""
        step = self._staged(spans, self.graphs.size_for(spans, self._longest) if self.graphs else None)
        rows = step.sampled_rows if step.num_tokens > step.num_spans else None
        hidden, logits = self._computed(step, given)
        if rows is not None:
            hidden, logits = hidden[rows], None if logits is None else logits[rows]
        logits = self.head.logits(hidden) if logits is None else logits
        slots = [span.slot for span in spans]
        ids = self._guided.choose(slots, fitted(logits, self._slots.limits.vocab_size), step.sampling)
        for span in spans:
            self._slots.states[span.slot].length += 1
        return _Guess(ids, self.head.following(hidden))

    def _staged(self, spans: list[Span], num_rows: int | None) -> Step:
        step = self._staging.stage(spans, num_rows)
        if self.cache.is_poisoned:
            self.cache.poison(self._staging.unwritten(spans))
        return step

    def _computed(self, step: Step, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What the head returns for each position, and logits if these were computed with it."""
        if step.decode is None:
            return self._hidden(step, given), None
        assert self.graphs is not None, "the graphs chose the size of this step"
        # Slots and positions: no adapter acts on the drafter.
        logits = self.graphs.run(step.decode[:2], given)[: step.num_tokens]
        hidden = self.graphs.states(step.num_tokens)
        assert hidden is not None, "it goes on with what it returns"
        return hidden[0], logits

    def _hidden(self, step: Step, given: torch.Tensor) -> torch.Tensor:
        assert step.forward is not None, "a step has exactly one of the two"
        inputs = replace(step.forward, adapters=None, given=given)
        if self._group.size == 1 or not step.has_prompts:
            return self.head(inputs, self.cache)  # type: ignore[no-any-return]
        return self._pact.run_pass(lambda: self.head(inputs, self.cache), len(inputs.token_ids))


def _report(error: Exception) -> None:
    logger.error("nothing was drafted in a step: %s", error)
