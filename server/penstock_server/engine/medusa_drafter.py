"""Drafts by heads of MEDUSA, from the hidden state that the last token of a slot was chosen from. A head chooses by the
noise of its position, as the sampler will: it guesses what will be drawn, not only what is likeliest.

The state is that of the step before, so that nothing is drafted in the first step behind one that was not read: heads
keep nothing of a sequence and lack nothing of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.guessed import agreed, handed_out
from penstock_server.engine.guided import Guided
from penstock_server.engine.likeliest import Guess
from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.recorded_heads import RecordedHeads
from penstock_server.engine.recordings import Ahead, can_record
from penstock_server.engine.sampling import ADJUSTING, choose
from penstock_server.engine.slots import Slots
from penstock_server.engine.staging import Staging
from penstock_server.engine.tree_growth import product_tree, static_tree
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import TapShape
from penstock_server.network.medusa import MedusaHeads
from penstock_server.network.upload import to_device


class _Run(NamedTuple):
    """Positions of a slot whose states are kept: from `start` on, in the rows `first .. first + length`."""

    states: torch.Tensor
    start: int
    first: int
    length: int


class MedusaDrafter(Drafter):
    """The heads, and the states of the last known positions of each slot."""

    def __init__(self, heads: MedusaHeads, slots: Slots, group: Group, branches: int | None = None) -> None:
        """`branches`: guesses of a head, with more than one for trees; None: for the tree that the heads have."""
        self.heads = heads
        self._slots = slots
        self._group = group
        self._staging = Staging(slots)
        self._guided = Guided(slots, group)
        self._choices = heads.choices if branches is None else ()
        self._branches = heads.most_choices if branches is None else branches
        self._recorded = (
            RecordedHeads(heads, slots, group, self._branches) if can_record(slots.device) else None
        )
        self._runs: dict[int, _Run] = {}
        # The tokens of the last tree that were right, by slot.
        self._paths: dict[int, Sequence[int]] = {}
        self._plan: Plan | None = None

    @property
    def taps(self) -> TapShape | None:
        return self.heads.taps

    @property
    def reads_step(self) -> bool:
        return self._plan is not None and not self._plan.is_closed

    def follow(self, plan: Plan) -> None:
        for slot in plan.retired:
            self._runs.pop(slot, None)
        self._plan = plan

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        rows: list[int] = []
        runs, begin = [], 0
        for span in spans:
            # Only the last position of a prompt is read.
            begin, count = begin + span.length, 1 + len(span.drafts)
            runs.append((span.slot, span.known_end - 1, len(rows), count))
            rows += range(begin - count, begin)
        kept = states[0].index_select(0, to_device(rows, torch.int64, states.device))
        self._runs.update((slot, _Run(kept, *run)) for slot, *run in runs)
        self._paths.clear()

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self._paths[slot] = path

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        states = self._states(wanted)
        if not states:
            return {}
        drafts = self._guess(list(states), list(states.values()), self._num_heads(wanted, states))
        return {slot: drafted[: wanted[slot]] for slot, drafted in drafts.items()}

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        if self._recorded is None or not self.grows_trees:
            return self.draft(spans, wanted)
        states = self._states(wanted)
        if not states:
            return {}
        slots = list(states)
        lengths = [self._slots.states[slot].length for slot in slots]
        features = reduce(or_, (self._slots.states[slot].features for slot in slots))
        num_heads = self._num_heads(wanted, states)
        found = self._recorded.levels(slots, lengths, list(states.values()), num_heads, bool(features))
        return {slot: self._tree(levels, wanted[slot]) for slot, levels in zip(slots, found, strict=True)}

    def _tree(self, levels: Sequence[Sequence[Guess]], size: int) -> tuple[int, ...]:
        choices = self._choices
        return static_tree(levels, choices, size) if choices else product_tree(levels, size)

    def _states(self, wanted: Mapping[int, int]) -> dict[int, torch.Tensor]:
        """The states from which the last tokens were chosen, for each slot that can be drafted for."""
        rows = {slot: row for slot in wanted if (row := self._row(slot)) is not None}
        return {slot: self._runs[slot].states[row] for slot, row in rows.items()}

    def _num_heads(self, wanted: Mapping[int, int], states: Mapping[int, torch.Tensor]) -> int:
        """How many are needed."""
        return min(self.heads.num_heads, max(wanted[slot] for slot in states))

    @property
    def grows_trees(self) -> bool:
        return self._recorded is not None and self._branches > 1

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        recorded = self._recorded
        return iter(()) if recorded is None else recorded.ahead(count, max_drafts, self.grows_trees)

    def clear(self) -> None:
        self._runs.clear()
        self._paths.clear()

    def _row(self, slot: int) -> int | None:
        """The row of the state that the last token of a slot was chosen from, if it is kept."""
        run = self._runs.get(slot)
        number = -1 if run is None else self._slots.states[slot].length - 2 - run.start
        path = self._paths.get(slot)
        if path is not None and 0 < number <= len(path):
            number = 1 + path[number - 1]
        return run.first + number if run is not None and 0 <= number < run.length else None

    def _guess(self, slots: list[int], states: list[torch.Tensor], most: int) -> Drafts:
        """So many tokens for each slot. `states`: [hidden_size] each."""
        features = reduce(or_, (self._slots.states[slot].features for slot in slots))
        # A guess may depend on the guesses before it.
        is_chain = self._guided.begin(dict.fromkeys(slots, most)) or bool(features & ADJUSTING)
        if self._recorded is None or is_chain:
            return self._guess_freely(slots, torch.stack(states), most, is_chain)
        lengths = [self._slots.states[slot].length for slot in slots]
        found = self._recorded.guess(slots, lengths, states, most, bool(features))
        return handed_out([slot for slot in slots for _ in range(most)], found, self._group)

    def _guess_freely(self, slots: list[int], states: torch.Tensor, most: int, is_chain: bool) -> Drafts:
        """Does what `_guess` does, op by op, whatever the slots ask for. `states`: [num_slots, hidden_size]."""
        spans = [Span(slot, self._slots.states[slot].length - 1, most, (0,) * (most - 1)) for slot in slots]
        sampling = self._staging.sampling_behind(spans)
        if not is_chain:
            ids = choose(self.heads(states, 0, most).flatten(0, 1), sampling, self._slots.rows.tokens)
            return agreed([slot for slot in slots for _ in range(most)], [ids], self._group)
        found = []
        for head in range(most):
            part = sampling.part(range(head, len(slots) * most, most))
            found.append(self._guided.choose(slots, self.heads(states, head, 1).squeeze(1), part))
        return self._guided.cut(agreed(slots * most, found, self._group))
