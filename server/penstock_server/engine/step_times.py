"""Decides whether drafts pay in a step: whether it gives more tokens in the same time than a step without drafts.

The number of tokens is estimated from how often drafts of its slots were right. The time is measured: it depends on the
drafter, the model and the machine. Ranks measure different times, so all of them follow the first rank's decision.

A step is measured only if some steps of the same kind came directly before it. While a step is computed, the router
sends the tokens of earlier steps to clients, on the same processors. So steps with drafts, which give many tokens, slow
down the first steps without drafts behind them: the fourth still by a tenth of its time. A step that is computed for
the first time is recorded meanwhile; it takes longer than later ones, and is not measured either.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from penstock_kernels.native.recording import num_recorded

from penstock_server.network.distributed import Group

# The fewest measured steps of each kind, before both kinds are compared.
_FEWEST = 4
# How many steps of the same kind come before a step that is measured. A step without drafts: behind steps with drafts,
# and behind all others, such as steps with prompts. A step with drafts: only one, because a text that seldom repeats
# gives only a few such steps in a row.
_BEHIND_DRAFTS, _BEFORE, _BEFORE_DRAFTED = 7, 3, 1
# How many steps a try has: without drafts, so that one of them is measured, and with drafts.
_NUM_PLAIN, NUM_TRIES = _BEHIND_DRAFTS + 1, 4
# Until enough steps of both kinds are measured: of each period of this length, the last steps are without drafts.
_FIRST_PERIOD = NUM_TRIES + _NUM_PLAIN
# At the end of a period of this many steps, the kind that does not pay may be tried: perhaps it pays now. Tries take
# this part of the time at first. The part is halved after each try that changed nothing, down to the least one.
PERIOD = 64
_TRIED_PART, _LEAST_TRIED_PART = 0.03, 0.0075
# In this many steps before a try with drafts, the drafter does not rest.
_AWAKE = 8
_WEIGHT_OF_NEWEST = 0.1
# A step counts as at most this many times the mean: behind the last step of a request there may be a pause.
_LONGEST = 4.0


class Decision(IntEnum):
    """The decision about drafts in a step."""

    REST = 0
    NO_DRAFTS = 1
    DRAFTS = 2
    # Draft as many tokens as the plan allows, whether they are likely to be right or not.
    TRY = 3


@dataclass(slots=True)
class _Mean:
    """The mean time of the steps of one kind; new ones weigh more than old ones."""

    count: int = 0
    # The steps that have the same weight; all older steps together have the weight of one of these.
    num_recent: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.num_recent += 1
        if self.count == 1:
            self.seconds = seconds
        weight = max(_WEIGHT_OF_NEWEST, 1 / self.num_recent)
        self.seconds += weight * (min(seconds, _LONGEST * self.seconds) - self.seconds)


@dataclass(slots=True)
class _Costs:
    """The times of steps with one number of rows."""

    plain: _Mean = field(default_factory=_Mean)
    drafted: _Mean = field(default_factory=_Mean)

    @property
    def are_known(self) -> bool:
        return self.plain.count >= _FEWEST and self.drafted.count >= _FEWEST

    @property
    def times_plain(self) -> float:
        """The time of a step with drafts, divided by that of one without."""
        return self.drafted.seconds / self.plain.seconds


@dataclass(slots=True)
class _Step:
    """A step that was begun, and has open spans only."""

    begun: float
    num_recorded: int
    num_rows: int
    has_drafts: bool = False


class StepTimes:
    """Measures steps, and decides."""

    def __init__(
        self,
        group: Group,
        clock: Callable[[], float] = time.perf_counter,
        num_recorded: Callable[[], int] = num_recorded,
    ) -> None:
        self._group = group
        self._clock = clock
        self._num_recorded = num_recorded
        # The times by the number of rows.
        self._costs: dict[int, _Costs] = defaultdict(_Costs)
        # The steps that were made to measure both kinds.
        self._num_explored = 0
        # The decision that is tried at the end of this period; None: nothing.
        self._tried: Decision | None = None
        # Periods until something is tried again.
        self._num_left = 0
        self._tried_part = _TRIED_PART
        # Whether drafts paid when something was tried last.
        self._paid: bool | None = None
        # The step that runs since the last plan, if all of its spans are open: other steps compute more than decodes.
        self._step: _Step | None = None
        # Whether the last steps had drafts (None: not all of their spans were open), and how many of them in a row.
        self._had_drafts: bool | None = None
        self._num_alike = 0
        # How many in a row have to be alike before one is measured.
        self._num_before = _BEFORE

    def begin(self, num_rows: int | None) -> None:
        """A step begins that has `num_rows` open spans and no others; None: it has others."""
        step = self._step
        if step is None and num_rows is None and self._had_drafts is None:
            return
        now = self._clock()
        had_drafts = None if step is None else step.has_drafts
        if had_drafts != self._had_drafts:
            self._num_before = (
                _BEFORE_DRAFTED if had_drafts else _BEHIND_DRAFTS if self._had_drafts else _BEFORE
            )
            self._had_drafts, self._num_alike = had_drafts, 0
        self._num_alike += 1
        if (
            step is not None
            and self._num_alike > self._num_before
            and step.num_recorded == self._num_recorded()
        ):
            costs = self._costs[step.num_rows]
            (costs.drafted if had_drafts else costs.plain).add(now - step.begun)
        self._step = None if num_rows is None else _Step(now, self._num_recorded(), num_rows)

    def note_drafts(self) -> None:
        """The step that was begun last has drafts."""
        if self._step is not None:
            self._step.has_drafts = True

    def leave_out(self) -> None:
        """The step that was begun last computes more than steps of its kind do."""
        self._step = None

    def clear(self) -> None:
        """The step that was begun is given up."""
        self._step = self._had_drafts = None

    def decide(self, num_rows: int, expected: float, place: int) -> Decision:
        """The decision for a step of `num_rows` rows. `expected`: how many of its drafts will be right; 0: no draft is
        likely enough. `place`: the number of the step in its period."""
        is_near = PERIOD - NUM_TRIES - _AWAKE <= place < PERIOD - NUM_TRIES
        if not (expected or is_near):
            return Decision.REST
        if place == PERIOD - _NUM_PLAIN:
            self._tried = None
        mine = Decision.REST
        if expected:
            mine = self._decided(num_rows, 1 + expected / num_rows, place)
        if mine == Decision.REST and is_near and self._num_left == 0:
            mine = Decision.NO_DRAFTS
        return Decision(self._group.gather_numbers(mine)[0][0])

    def _decided(self, num_rows: int, gain: float, place: int) -> Decision:
        """The decision of this rank. `gain`: the tokens of the step, divided by those of a step without drafts."""
        known = self._known(num_rows)
        cost = 1.0 if known is None else self._costs[known].times_plain
        pays = gain >= cost
        if pays and known != num_rows:
            return self._explored(num_rows)
        if place == PERIOD - (_NUM_PLAIN if pays else NUM_TRIES):
            self._tried = self._begin_tries(self._costs[num_rows], pays, cost)
        if self._tried is not None and place >= PERIOD - NUM_TRIES:
            return self._tried
        if self._tried == Decision.NO_DRAFTS and place >= PERIOD - _NUM_PLAIN:
            return self._tried
        return Decision.DRAFTS if pays else Decision.REST

    def _known(self, num_rows: int) -> int | None:
        """The number of rows whose times say what drafts cost with `num_rows`: this number, or else a smaller one, for
        what does not pay with few rows does not pay with more. None: both kinds have to be measured first."""
        if self._costs[num_rows].are_known:
            return num_rows
        fewer = (rows for rows, costs in self._costs.items() if rows < num_rows and costs.are_known)
        return max(fewer, default=None)

    def _explored(self, num_rows: int) -> Decision:
        place = self._num_explored % _FIRST_PERIOD
        self._num_explored += 1
        is_plain = place >= _FIRST_PERIOD - _NUM_PLAIN and self._costs[num_rows].plain.count < _FEWEST
        return Decision.NO_DRAFTS if is_plain else Decision.DRAFTS

    def _begin_tries(self, costs: _Costs, pays: bool, cost: float) -> Decision | None:
        """The decision for the last steps of this period; None: what pays."""
        if self._num_left > 0:
            self._num_left -= 1
            return None
        self._tried_part = _TRIED_PART if pays != self._paid else max(self._tried_part / 2, _LEAST_TRIED_PART)
        self._paid = pays
        spent = _NUM_PLAIN / cost if pays else NUM_TRIES * cost
        # Where drafts pay, slots whose drafts were wrong are tried in the periods between.
        self._num_left = max(int(pays), int(spent / (self._tried_part * PERIOD)))
        # Old measurements count less.
        (costs.plain if pays else costs.drafted).num_recent = 1
        return Decision.NO_DRAFTS if pays else Decision.TRY
