"""Asks another drafter for as many drafts as pay, and for no more: this depends on how often drafts of a slot were
right, and on how long steps took.

Where drafts do not pay, the other drafter rests: it gets the hidden states of prompts only, and computes nothing,
unless it keeps too many of them. The hidden states that it does not get make its drafts worse, so it gets those of some
steps before it is tried again. While more sequences generate than drafts are made for, it gets no hidden states at all.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.limiting_drafter import LimitingDrafter
from penstock_server.engine.plan import Drafts, Plan, Span
from penstock_server.engine.slot_rates import SlotRates
from penstock_server.engine.step_times import NUM_TRIES, PERIOD, Decision, StepTimes
from penstock_server.engine.token_tree import is_open

# A draft is made only if the probability that it counts is at least this.
_LEAST_WORTH = 0.25
# On a CPU arithmetic takes most of a step of several rows: one more position for each of n rows takes n times this part
# of the step. (A 110M-parameter Llama in float32 on one core: 0.11 with one row, 0.13 with 4, 0.10 with 8.) A GPU waits
# for memory instead.
CPU_ROW_COST = 0.1


class _Likely(NamedTuple):
    """Drafts by slot, and how many of them are expected to be right."""

    numbers: Mapping[int, int]
    expected: float


class PayingDrafter(LimitingDrafter):
    """Limits what another drafter is asked for."""

    def __init__(
        self,
        drafter: Drafter,
        row_cost: float = 0.0,
        times: StepTimes | None = None,
        max_drafting: int = 0,
    ) -> None:
        """Without `times`, a step is taken to be as fast with drafts as without. `max_drafting`: where more sequences
        than this generate, nothing is drafted; 0: not known."""
        super().__init__(drafter)
        self._max_drafting = max_drafting
        self.rates = SlotRates()
        self.times = times
        self._row_cost = row_cost
        self._num_steps = 0
        self._drafts: Drafts = {}
        # By slot, the drafts of which it is not known whether they are right. Of a tree: those that were right, and one
        # behind them.
        self._num_open: dict[int, int] = {}
        self._rests = False
        # The last question and its answer, which holds until more is known of slots.
        self._asked: tuple[object, ...] | None = None
        self._likely = _Likely({}, 0.0)
        self._plan: Plan | None = None

    def follow(self, plan: Plan) -> None:
        for admit in plan.admitted:
            self.rates.forget(admit.slot)
            self._asked = None
        if self.times is not None:
            num_open = len(plan.open_drafts)
            is_open_alone = num_open > 0 and num_open == len(plan.spans) and not plan.admitted
            self.times.begin(num_open if is_open_alone else None)
        self._plan = plan
        self.inner.follow(plan)

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        self._num_steps += 1
        place = self._num_steps % PERIOD
        least = max(_LEAST_WORTH, self._row_cost * num_rows)
        # The step has no rows, or no draft can be likely enough.
        if num_rows == 0 or least >= 1:
            self._rests = True
            return {}
        numbers, expected = self._judged(wanted, least, at_least=int(place >= PERIOD - NUM_TRIES))
        has_rested = self._rests
        decision = Decision.DRAFTS if self.times is None else self.times.decide(num_rows, expected, place)
        self._rests = decision == Decision.REST
        if has_rested and not self._rests and self.times is not None:
            # The other drafter may compute hidden states that it got while it rested.
            self.times.leave_out()
        if decision == Decision.TRY:
            numbers = dict(wanted)
        return self.inner.worth(num_rows, numbers) if decision >= Decision.DRAFTS and numbers else {}

    @property
    def takes_in(self) -> bool:
        return (not self._rests or self.inner.is_behind) and super().takes_in

    @property
    def reads_step(self) -> bool:
        plan = self._plan
        if plan is None or (self._rests and plan.is_of_decodes):
            return False
        return super().reads_step and not self._is_full(plan)

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._noted(spans, wanted, self.inner.draft(spans, wanted) if self._asks(wanted) else {})

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        drafts = self.inner.draft_trees(spans, wanted) if self._asks(wanted) else {}
        return self._noted(spans, wanted, drafts)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        self._num_open[slot] = len(path) + is_open(self._drafts[slot], path)
        super().keep(slot, path)

    def accept(self, slot: int, num_right: int) -> None:
        self.rates.count(slot, num_right, has_wrong=num_right < self._num_open.pop(slot, 0))
        self._asked = None
        self.inner.accept(slot, num_right)

    def clear(self) -> None:
        self.rates.clear()
        self._num_steps = 0
        self._num_open.clear()
        self._asked = None
        self._rests = False
        if self.times is not None:
            self.times.clear()
        super().clear()

    def _judged(self, wanted: Mapping[int, int], least: float, at_least: int) -> _Likely:
        """How many drafts of each slot are likely enough to count; slots without such drafts are left out. `at_least`:
        drafts that each slot gets in any case. It is 1 for all slots in the same steps, one after the other, because
        drafts change the times that are measured."""
        asked = (least, at_least, *wanted.items())
        if asked == self._asked:
            return self._likely
        worth = {
            slot: min(most, max(at_least, self.rates.num_worth(slot, most, least)))
            for slot, most in wanted.items()
        }
        numbers = {slot: number for slot, number in worth.items() if number > 0}
        expected = sum(self.rates.expected(slot, number) for slot, number in numbers.items())
        self._asked, self._likely = asked, _Likely(numbers, expected)
        return self._likely

    def _asks(self, wanted: Mapping[int, int]) -> bool:
        """Whether the other drafter is to do anything in a step."""
        rests = self._rests or self._plan is None or self._is_full(self._plan)
        return bool(wanted) or not rests or self.inner.is_behind

    def _is_full(self, plan: Plan) -> bool:
        """Whether drafts are made for fewer sequences than it has: those with prompts will generate next."""
        return not plan.open_drafts and 0 < self._max_drafting < len(plan.spans)

    def _noted(self, spans: Sequence[Span], wanted: Mapping[int, int], drafts: Drafts) -> Drafts:
        # Drafts of other slots stay: their step may still be in another stage.
        for span in spans:
            self._num_open.pop(span.slot, None)
        self._drafts = drafts
        self._num_open.update((slot, len(drafted)) for slot, drafted in drafts.items())
        if self.times is not None and any(drafts.values()):
            self.times.note_drafts()
        elif self.times is not None and wanted and self.inner.catches_up:
            self.times.leave_out()
        return drafts
