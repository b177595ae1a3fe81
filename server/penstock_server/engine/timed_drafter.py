"""Drafts only where steps with drafts give more tokens in the same time than steps without, by how long both took.

What a draft costs depends on the drafter, the model and the machine, and can be more than it gains. Times differ
between ranks, so the first rank's decision is that of all.

A step is measured behind some of its kind. While it is computed, the router hands out the tokens of steps before, on
the same processors: a single step without drafts would pay for the many tokens of the one before it. A step in which
something is computed for the first time, and recorded, says nothing about later ones.

Where drafts do not pay, the other drafter rests: it is told prompts alone. What it then lacks makes its drafts worse,
so before the next step with drafts it is told some steps.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from penstock_kernels.native.recording import num_recorded

from penstock_server.engine.drafting import Drafter
from penstock_server.engine.limiting_drafter import LimitingDrafter
from penstock_server.engine.plan import Drafts, Plan, Span, Spans
from penstock_server.network.distributed import Group

# So many steps of a kind have to be measured before it is compared.
_FEWEST = 4
# So many steps of its kind are before one that is measured; so many steps it takes to measure one.
_BEFORE = 3
_TRIED = _BEFORE + 1
# Until there are enough, the last of each so many steps are without drafts.
_FIRST_PERIOD = 2 * _TRIED
# Now and then some are of the slower kind, to see whether it has become faster: they take this part of the time, and
# half of it each time that it has not, down to the other.
_TRIED_PART, _LEAST_TRIED_PART = 0.03, 0.0075
# In so many steps before those it does not rest.
_AWAKE = 8
_WEIGHT_OF_NEWEST = 0.1
# A step counts as no longer than so many times the mean: behind the last step of a request there may be a pause.
_LONGEST = 4.0


class _Decision(IntEnum):
    """What is done in a step."""

    REST = 0
    NO_DRAFTS = 1
    DRAFTS = 2


@dataclass(slots=True)
class _Pace:
    """Means over the steps of one kind."""

    count: int = 0
    # Of them, those that count like one another; the older ones count like one of these.
    num_recent: int = 0
    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, tokens: int) -> None:
        self.count += 1
        self.num_recent += 1
        weight = max(_WEIGHT_OF_NEWEST, 1 / self.num_recent)
        if self.count > 1:
            seconds = min(seconds, _LONGEST * self.seconds)
        self.seconds += weight * (seconds - self.seconds)
        self.tokens += weight * (tokens - self.tokens)

    @property
    def is_known(self) -> bool:
        return self.count >= _FEWEST

    @property
    def seconds_of_token(self) -> float:
        return self.seconds / self.tokens


@dataclass(slots=True)
class _Step:
    """A step of open spans that was begun."""

    begun: float
    num_recorded: int
    num_rows: int
    num_right: int = 0
    has_drafts: bool = False


class TimedDrafter(LimitingDrafter):
    """Asks another drafter for nothing in steps in which that would not pay."""

    def __init__(
        self,
        drafter: Drafter,
        group: Group,
        clock: Callable[[], float] = time.perf_counter,
        num_recorded: Callable[[], int] = num_recorded,
    ) -> None:
        super().__init__(drafter)
        self._group = group
        self._clock = clock
        self._num_recorded = num_recorded
        # By the number of rows, and whether there were drafts.
        self._paces: dict[tuple[int, bool], _Pace] = defaultdict(_Pace)
        # Steps before both kinds were measured.
        self._num_tried = 0
        # Steps until the slower kind is tried again; less than none while it is.
        self._num_until_tried = -_TRIED
        self._tried_part = _TRIED_PART
        # What came of comparing the kinds last.
        self._paid: bool | None = None
        self._rests = False
        # Whether all spans of the last plan are decodes.
        self._is_decoding = False
        # Whether it was told anything since it was asked last.
        self._is_told = False
        # The step since the last plan, if all of its spans are open: others compute more than decodes.
        self._step: _Step | None = None
        # Whether those before it had drafts, if all of their spans were open, and how many were alike.
        self._had_drafts: bool | None = None
        self._num_alike = 0

    def follow(self, plan: Plan) -> None:
        now, step = self._clock(), self._step
        had_drafts = None if step is None else step.has_drafts
        self._num_alike = self._num_alike + 1 if had_drafts == self._had_drafts else 1
        self._had_drafts = had_drafts
        if step is not None and self._num_alike > _BEFORE and step.num_recorded == self._num_recorded():
            self._paces[step.num_rows, step.has_drafts].add(now - step.begun, step.num_rows + step.num_right)
        self._is_decoding = bool((Spans.of(plan.spans).numbers[2] == 1).all())
        are_open = bool(plan.spans) and len(plan.open_drafts) == len(plan.spans)
        self._step = (
            _Step(now, self._num_recorded(), len(plan.spans)) if are_open and not plan.admitted else None
        )
        self.inner.follow(plan)

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        if not wanted:
            return {}
        decision = self._group.gather_numbers(self._decision(num_rows))[0][0]
        self._rests = decision == _Decision.REST
        return self.inner.worth(num_rows, wanted) if decision == _Decision.DRAFTS else {}

    @property
    def takes_in(self) -> bool:
        return super().takes_in and (self._is_told or not self._rests)

    @property
    def reads_step(self) -> bool:
        return not (self._rests and self._is_decoding) and super().reads_step

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        self._is_told = True
        super().read(spans, states)

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._noted(self.inner.draft(spans, wanted))

    def draft_trees(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return self._noted(self.inner.draft_trees(spans, wanted))

    def accept(self, slot: int, num_right: int) -> None:
        if self._step is not None:
            self._step.num_right += num_right
        self.inner.accept(slot, num_right)

    def clear(self) -> None:
        self._step = self._had_drafts = None
        self._rests = self._is_told = False
        super().clear()

    def _noted(self, drafts: Drafts) -> Drafts:
        self._is_told = False
        if self._step is not None:
            self._step.has_drafts = any(drafts.values())
        return drafts

    def _decision(self, num_rows: int) -> _Decision:
        known = self._judged(num_rows)
        if known is None:
            place = self._num_tried % _FIRST_PERIOD
            self._num_tried += 1
            is_plain = place >= _FIRST_PERIOD - _TRIED and not self._paces[num_rows, False].is_known
            return _Decision.NO_DRAFTS if is_plain else _Decision.DRAFTS
        drafted, plain = self._paces[known, True], self._paces[known, False]
        pays = self._pays(known)
        if pays != self._paid:
            self._paid, self._tried_part = pays, _TRIED_PART
        self._count_down(*((plain, drafted) if pays else (drafted, plain)))
        if pays != (self._num_until_tried < 0):
            return _Decision.DRAFTS
        return _Decision.NO_DRAFTS if pays or self._num_until_tried < _AWAKE else _Decision.REST

    def _judged(self, num_rows: int) -> int | None:
        """The number of rows whose steps say whether drafts pay with so many: what does not pay with few rows does not
        with more. None: both kinds have to be measured first."""
        if self._is_known(num_rows):
            return num_rows
        fewer = {rows for rows, _has_drafts in self._paces if rows < num_rows}
        return max((rows for rows in fewer if self._is_known(rows) and not self._pays(rows)), default=None)

    def _is_known(self, num_rows: int) -> bool:
        return all(self._paces[num_rows, has_drafts].is_known for has_drafts in (True, False))

    def _pays(self, num_rows: int) -> bool:
        """Whether steps of so many rows give more tokens in the same time with drafts."""
        drafted, plain = self._paces[num_rows, True], self._paces[num_rows, False]
        return drafted.seconds_of_token <= plain.seconds_of_token

    def _count_down(self, slower: _Pace, faster: _Pace) -> None:
        """One step less until the slower kind is tried."""
        self._num_until_tried -= 1
        if self._num_until_tried < -_TRIED:
            slower.num_recent = 1  # what was measured long ago counts less
            self._num_until_tried = int(_TRIED / self._tried_part * slower.seconds / faster.seconds)
            self._tried_part = max(self._tried_part / 2, _LEAST_TRIED_PART)
