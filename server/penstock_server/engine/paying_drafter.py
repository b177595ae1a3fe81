"""Drafts no more for a slot than pays, by how often its drafts were right so far.

That follows from outcomes alone, so that all ranks draft the same number.
"""

from collections.abc import Mapping, Sequence

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.limiting_drafter import LimitingDrafter
from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.token_tree import is_open

# A draft is made only if it counts with this probability, or a greater one.
_LEAST_WORTH = 0.25
# On a CPU arithmetic takes most of a step of several rows: one more position for each of n rows takes n times this part
# of the step. (A 110M-parameter Llama in float32 on one core: 0.11 with one row, 0.13 with 4, 0.10 with 8.) A GPU waits
# for memory instead.
CPU_ROW_COST = 0.1
# Of a slot of which nothing is known. It takes six wrong drafts in a row until nothing is drafted.
_FIRST_RATE = 0.8
_WEIGHT_OF_NEWEST = 0.2
# In four steps of so many a draft tries whether the text has changed: of all slots at once, as drafts cost time,
# and in a row, as a step is measured behind others of its kind, see `timed_drafter`.
_PAUSE, _NUM_TRIES = 64, 4


class PayingDrafter(LimitingDrafter):
    """Limits what another drafter is asked for."""

    def __init__(self, drafter: Drafter, row_cost: float = 0.0) -> None:
        super().__init__(drafter)
        self._row_cost = row_cost
        # By slot: the part of the drafts that was right, the newest counting most.
        self._rates: dict[int, float] = {}
        self._num_steps = 0
        self._drafts: Drafts = {}
        # Drafts of which it is not known whether they are right; of a tree those that were right, and one behind them.
        self._num_open: dict[int, int] = {}

    def follow(self, plan: Plan) -> None:
        for admit in plan.admitted:
            self._rates.pop(admit.slot, None)
        self.inner.follow(plan)

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        self._num_steps += 1
        least = max(_LEAST_WORTH, self._row_cost * num_rows)
        if least >= 1:
            return {}
        worth = {slot: self._num_worth(slot, most, least) for slot, most in wanted.items()}
        likely = {slot: number for slot, number in worth.items() if number > 0}
        return self.inner.worth(num_rows, likely) if likely else {}

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._noted(spans, self.inner.draft(spans, wanted))

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._noted(spans, self.inner.draft_trees(spans, wanted))

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self._num_open[slot] = len(path) + is_open(self._drafts[slot], path)
        super().keep(slot, path)

    def accept(self, slot: int, num_right: int) -> None:
        rate = self._rates.get(slot, _FIRST_RATE)
        for _ in range(num_right):
            rate += _WEIGHT_OF_NEWEST * (1 - rate)
        if num_right < self._num_open.pop(slot, 0):
            rate -= _WEIGHT_OF_NEWEST * rate
        self._rates[slot] = rate
        self.inner.accept(slot, num_right)

    def _noted(self, spans: Sequence[Span], drafts: Drafts) -> Drafts:
        # Those of other slots may still be in another stage.
        for span in spans:
            self._num_open.pop(span.slot, None)
        self._drafts = drafts
        self._num_open.update((slot, len(drafted)) for slot, drafted in drafts.items())
        return drafts

    def clear(self) -> None:
        self._rates.clear()
        self._num_steps = 0
        self._num_open.clear()
        super().clear()

    def _num_worth(self, slot: int, most: int, least: float) -> int:
        """How many drafts of a slot are likely enough to count."""
        rate = self._rates.get(slot, _FIRST_RATE)
        number, chance = 0, rate
        while number < most and chance >= least:
            number, chance = number + 1, chance * rate
        tries = self._num_steps % _PAUSE >= _PAUSE - _NUM_TRIES
        return min(most, max(number, int(tries)))
