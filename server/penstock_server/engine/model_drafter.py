"""Drafts by a second, small model, which chooses by the same noise as the sampler: it guesses what will be drawn, not
only what is likeliest.

It computes the chunks of prompts beside the model, and then one token of each slot at a time. What it lacks of a slot,
because nothing was drafted for a while or its first blocks were computed by others, it computes before it drafts.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch

from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.draft_plane import DraftPlane
from penstock_server.engine.graphed_drafter import GraphedDrafter
from penstock_server.engine.guessed import agreed, fitted
from penstock_server.engine.guided import Guided
from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.recordings import Ahead
from penstock_server.engine.slots import Slots
from penstock_server.engine.staging import Staging
from penstock_server.engine.step import Step
from penstock_server.engine.step_pact import StepPact
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.model import Model

logger = logging.getLogger(__name__)

# Positions that a step may compute for slots of which the drafter lacks some: others wait for it.
_MOST_CAUGHT_UP = 256
# On a CPU the pass that drafts the first token may compute the position before, too: that of the last draft, which was
# right and computed by nobody. On CUDA a graph has one position of each slot.
_FIRST_PASS = 2


class ModelDrafter(GraphedDrafter):
    """The small model over its plane of the cache."""

    def __init__(
        self, model: Model, cache: KVCache, slots: Slots, group: Group, graphs: DecodeGraphs | None
    ) -> None:
        self.model = model
        self.cache = cache
        super().__init__(graphs)
        self.plane = DraftPlane(slots.limits)
        self._slots = slots
        self._group = group
        self._staging = Staging(slots)
        # Most positions of a slot in the pass that drafts the first token.
        self._first_pass = 1 if slots.device.type == "cuda" else _FIRST_PASS
        self._guided = Guided(slots, group)
        self._pact = StepPact(group, slots.device, _report)
        # Slots whose drafts are not yet known to be right: their lengths, and the numbers of their drafts.
        self._open: dict[int, tuple[int, int]] = {}

    @property
    def catches_up(self) -> bool:
        return True

    def follow(self, plan: Plan) -> None:
        self.plane.follow(plan, self._slots.is_valid)

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        states = self._slots.states
        behind = {
            slot: states[slot].length - 1 for slot in wanted if self._num_unknown(slot) > self._first_pass
        }
        prompts = {span.slot: span.end for span in spans if span.length > 1}
        lacking = [*self._lacking(behind, _MOST_CAUGHT_UP)]
        left = self._slots.limits.max_step_tokens - sum(span.length for span in lacking)
        lacking += self._lacking(prompts, left)
        if lacking:
            self._compute(lacking)
            for span in lacking:
                self.plane.fill(span.slot, span.end)
        numbers = {slot: self._num_possible(slot, number) for slot, number in wanted.items()}
        return self._guess({slot: number for slot, number in numbers.items() if number > 0})

    def accept(self, slot: int, num_right: int) -> None:
        if slot in self._open:
            length, number = self._open.pop(slot)
            # The last draft was computed by nobody.
            self.plane.fill(slot, length + min(number - 1, num_right))

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        sizes = range(count, count * self._first_pass + 1)
        graphs = self.graphs
        if graphs is not None:
            yield from chain.from_iterable(
                graphs.ahead(size, has_trees=False) for size in sizes if graphs.size_of(size) == size
            )

    def forget(self, blocks: Sequence[int]) -> None:
        self.plane.forget(blocks)

    def clear(self) -> None:
        self.plane.clear()
        self._open.clear()

    def _lacking(self, ends: Mapping[int, int], budget: int) -> Iterator[Span]:
        """The spans that the plane lacks before these ends, at most `budget` positions."""
        for slot, end in ends.items():
            start = self.plane.filled(slot)
            end = min(end, self.model.facts.max_sequence_len, start + budget)
            if end > start:
                budget -= end - start
                yield Span(slot, start, end - start)

    def _num_unknown(self, slot: int) -> int:
        """Positions of a slot that the plane lacks, and at least the last one."""
        return max(1, self._slots.states[slot].length - self.plane.filled(slot))

    def _num_possible(self, slot: int, wanted: int) -> int:
        """How many tokens can be drafted for a slot: none where the plane lacks more than a first pass computes."""
        left = self.model.facts.max_sequence_len - (self._slots.states[slot].length - 1)
        return min(wanted, left) if self._num_unknown(slot) <= self._first_pass else 0

    def _guess(self, numbers: dict[int, int]) -> Drafts:
        """So many tokens for each slot, which has them in its row."""
        states = self._slots.states
        lengths = {slot: states[slot].length for slot in numbers}
        passes: list[tuple[list[int], torch.Tensor]] = []
        self._guided.begin(numbers)
        try:
            while slots := self._going_on(numbers, len(passes)):
                lens = [1 if passes else self._num_unknown(slot) for slot in slots]
                passes.append((slots, self._next_tokens(slots, lens)))
        finally:
            for slot, length in lengths.items():
                states[slot].length = length
        owners = [slot for slots, _ids in passes for slot in slots]
        drafts = self._guided.cut(agreed(owners, [ids for _slots, ids in passes], self._group))
        for slot, length in lengths.items():
            self.plane.fill(slot, length)
            if drafts[slot]:
                self._open[slot] = length, numbers[slot]
        return drafts

    def _going_on(self, numbers: Mapping[int, int], done: int) -> list[int]:
        """The slots with more guesses than these."""
        return [slot for slot, number in numbers.items() if number > done and self._guided.goes_on(slot)]

    def _next_tokens(self, slots: list[int], lens: list[int]) -> torch.Tensor:
        """The token that follows in each slot, which becomes its last one; `lens`: its last positions to compute."""
        states = self._slots.states
        spans = [
            Span(slot, states[slot].length - number, number) for slot, number in zip(slots, lens, strict=True)
        ]
        step, hidden = self._compute(spans, self._first_pass)
        logits = self._logits(step, hidden)
        ids = self._guided.choose(slots, fitted(logits, self._slots.limits.vocab_size), step.sampling)
        for slot in slots:
            states[slot].length += 1
        return ids

    def _compute(self, spans: list[Span], longest: int = 1) -> tuple[Step, torch.Tensor]:
        """Fill the plane at these spans; also logits of a decode graph, else hidden states.

        Such a graph has spans that are no longer than `longest`, but for drafts.
        """
        step = self._staging.stage(spans, self.graphs.size_for(spans, longest) if self.graphs else None)
        if self.cache.is_poisoned:
            own = (max(span.start, self.plane.first_own(span.slot)) for span in spans)
            unwritten = [replace(span, start=start) for span, start in zip(spans, own, strict=True)]
            self.cache.poison(self._staging.unwritten(unwritten))
        if step.decode is not None:
            assert self.graphs is not None, "the graphs chose the size of this step"
            # Slots and positions: no adapter acts on the drafter.
            return step, self.graphs.run(step.decode[:2])[: step.num_tokens]
        assert step.forward is not None, "a step has exactly one of the two"
        return step, self._hidden(replace(step.forward, adapters=None), is_compared=step.has_prompts)

    def _logits(self, step: Step, computed: torch.Tensor) -> torch.Tensor:
        """The logits behind each span, from what `_compute` returned."""
        if len(computed) > step.sampling.num_rows:
            computed = computed[step.sampled_rows]
        return computed if step.forward is None else self.model.logits(computed)

    def _hidden(self, inputs: ForwardInput, is_compared: bool) -> torch.Tensor:
        if self._group.size == 1 or not is_compared:
            return self.model(inputs, self.cache)
        return self._pact.run_pass(lambda: self.model(inputs, self.cache), inputs)


def _report(error: Exception) -> None:
    logger.error("nothing was drafted in a step: %s", error)
