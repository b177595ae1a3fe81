"""Drafts by a head that guesses several tokens in one pass: P-EAGLE, whose formulas `network/eagle` has.

The pass goes over what the head was told and, behind that, over a stand-in for each further token. What it writes for
these lies behind what is filled of its plane, so that the next pass takes their places. A guess does not know the
guesses before it, but for what a request allows or asks for: where that depends on them, tokens are chosen one by one.
Where drafts may be trees, each token has several guesses, and the tree is the likeliest of their combinations.
"""

from collections.abc import Mapping, Sequence

import torch

from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.guessed import agreed
from penstock_server.engine.head_drafter import LONGEST_FIRST, HeadDrafter
from penstock_server.engine.kept_states import Run
from penstock_server.engine.plan import Drafts, Span
from penstock_server.engine.recorded_at_once import RecordedAtOnce, RecordedTreesAtOnce
from penstock_server.engine.sampling import choose
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import SamplingInput
from penstock_server.engine.told_pass import ToldPass, Wanted
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.upload import to_device


class ParallelDrafter(HeadDrafter):
    """The head over its plane of the cache."""

    def __init__(
        self,
        head: EagleHead,
        cache: KVCache,
        slots: Slots,
        group: Group,
        graphs: DecodeGraphs | None,
        branches: int = 1,
    ) -> None:
        """`branches`: as for `HeadDrafter`."""
        assert head.parallel is not None, "it was trained for this"
        self._parallel_head, self._facts = head, head.parallel
        super().__init__(head, cache, slots, group, graphs, branches)
        # The pass has several positions of a slot in any case.
        self._longest = LONGEST_FIRST

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return super().draft(spans, {slot: self._depth(number) for slot, number in wanted.items()})

    def _recording(self, slots: Slots) -> ToldPass:
        return RecordedAtOnce(self._parallel_head, self.cache, slots)

    def _tree_recording(self, slots: Slots, group: Group, branches: int) -> RecordedTreesAtOnce:
        return RecordedTreesAtOnce(self._parallel_head, self.cache, slots, group, branches)

    def _depth(self, number: int) -> int:
        """No deeper than what it was trained for."""
        most = self._facts.max_drafts
        return number if most is None else min(number, most)

    def _wanted(self, slot: int, run: Run, number: int) -> Wanted:
        """With a stand-in for each token but the first, in its row, too."""
        wanted = super()._wanted(slot, run, number)
        if number == 1:
            return wanted
        self._slots.rows.tokens[slot, wanted.length : wanted.length + number - 1] = self._facts.mask_token_id
        states = torch.cat((run.states, self._parallel_head.stand_in.expand(number - 1, -1)))
        return wanted._replace(run=Run(run.start, states))

    def _guess_freely(self, wanted: Sequence[Wanted], is_chain: bool) -> Drafts:
        spans = [
            Span(slot, run.start, len(run.states), (self._facts.mask_token_id,) * (number - 1))
            for slot, _length, run, number in wanted
        ]
        num_rows = sum(span.length for span in spans)
        size = self.graphs.size_of(num_rows) if self.graphs is not None else None
        step = self._staged(spans, size)
        _hidden, logits = self._scored(step, self._prepared(each.run for each in wanted))
        owners = [each.slot for each in wanted for _ in range(each.number)]
        if not is_chain:
            return agreed(owners, [choose(logits, step.sampling, self._slots.rows.tokens)], self._group)
        return self._choose_one_by_one(owners, logits, step.sampling)

    def _choose_one_by_one(self, owners: list[int], logits: torch.Tensor, sampling: SamplingInput) -> Drafts:
        """The first token of each slot, then the second ones. `owners`: the slot of each row."""
        numbers = [owners[:row].count(slot) for row, slot in enumerate(owners)]
        found, chosen = [], []
        for number in range(max(numbers) + 1):
            rows = [
                row
                for row, slot in enumerate(owners)
                if numbers[row] == number and self._guided.goes_on(slot)
            ]
            if not rows:
                break
            slots = [owners[row] for row in rows]
            part = logits.index_select(0, to_device(rows, torch.int64, logits.device))
            found.append(self._guided.choose(slots, part, sampling.part(rows)))
            chosen += slots
        return self._guided.cut(agreed(chosen, found, self._group))
