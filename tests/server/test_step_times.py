"""Whether anything is drafted follows from how long steps took, with drafts and without."""

import random
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from penstock_server.base.config import GroupConfig
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.paying_drafter import PayingDrafter
from penstock_server.engine.plan import Admit, Drafts, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.step_times import StepTimes
from penstock_server.network.distributed import Group
from penstock_server.network.forward_input import TapShape


class Willing(Drafter):
    """Drafts as many as it is asked for."""

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        return {slot: (7,) * most for slot, most in wanted.items()}


class Server:
    """Steps of which `cost` tells the seconds, with drafts or without; of each slot's drafts so many are right."""

    def __init__(self, cost: Callable[[bool], float], right: int, group: Group | None = None) -> None:
        self.now = 0.0
        self.cost, self.right = cost, right
        lone = Group(GroupConfig(0, 1, None), torch.device("cpu"))
        self.num_recorded = 0
        self.times = StepTimes(group or lone, lambda: self.now, lambda: self.num_recorded)
        self.drafter = PayingDrafter(Willing(), times=self.times, max_drafting=2)
        self.number = 0

    def run(self, num_steps: int, num_rows: int = 2) -> list[bool]:
        """Which of these steps had drafts."""
        return [self._step(num_rows) for _ in range(num_steps)]

    def part_of_time(self, has_drafts: bool, num_steps: int = 1000) -> float:
        """The part that steps with drafts, or without, take of the time of so many."""
        before, steps = self.now, self.run(num_steps)
        return sum(self.cost(drafted) for drafted in steps if drafted == has_drafts) / (self.now - before)

    def _step(self, num_rows: int) -> bool:
        self.number += 1
        spans = [Span(slot, 9, 1) for slot in range(num_rows)]
        wanted = dict.fromkeys(range(num_rows), 2)
        self.drafter.follow(Plan(1, self.number, spans=spans, open_drafts=wanted))
        drafts = self.drafter.draft(spans, self.drafter.worth(num_rows, wanted))
        self.now += self.cost(bool(drafts))
        for slot in drafts:
            self.drafter.accept(slot, self.right)
        return bool(drafts)


def test_drafts_that_cost_more_than_they_give_end() -> None:
    server = Server(lambda has_drafts: 3.4 if has_drafts else 0.9, right=1)
    assert server.run(12) == [True] * 4 + [False] * 8
    server.run(60)
    assert 0 < server.part_of_time(has_drafts=True) < 0.035
    server.run(5000)
    assert 0 < server.part_of_time(has_drafts=True, num_steps=5000) < 0.01, "less often each time"


def test_steps_in_which_something_is_recorded_do_not_count() -> None:
    def cost(has_drafts: bool) -> float:
        if not has_drafts:
            return 1.0
        # With drafts, each number of rows is recorded once, at its first step.
        server.num_recorded += server.num_recorded < 30
        return 50.0 if server.num_recorded < 30 else 2.0

    server = Server(cost, right=2)
    server.run(100)
    assert server.part_of_time(has_drafts=True) > 0.95


class Reading(Willing):
    """Reads hidden states, too."""

    def __init__(self) -> None:
        self.num_read = self.num_asked = 0
        self.has_much = False

    @property
    def is_behind(self) -> bool:
        return self.has_much

    @property
    def taps(self) -> TapShape:
        return TapShape((1,), 4)

    @property
    def reads_step(self) -> bool:
        return True

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        self.num_asked += 1
        return super().draft(spans, wanted)

    def read(self, spans: Sequence[Span], states: torch.Tensor) -> None:
        self.num_read += 1


def test_who_drafts_rests_where_that_does_not_pay() -> None:
    """It is told prompts, and asked when it keeps much of them; and told the last steps before one that tries again."""
    server, reading = Server(lambda has_drafts: 9.0 if has_drafts else 1.0, right=0), Reading()
    drafter, states = server.drafter, torch.zeros(1, 1, 4)
    drafter.inner = reading
    server.run(64)
    reading.num_read = reading.num_asked = 0
    told = []
    for step in range(1500):
        wanted = {0: 2}
        drafter.follow(Plan(1, step, spans=[Span(0, 9, 1)], open_drafts=wanted))
        if (worth := drafter.worth(2, wanted)) or drafter.takes_in:
            drafter.draft([], worth)
        server.now += server.cost(bool(worth))
        told.append(drafter.reads_step)
        if drafter.reads_step:
            drafter.read([Span(0, 9, 1)], states)
    first = told.index(True)
    assert sum(told) == 12, "eight steps, and four with drafts"
    assert all(told[first : first + 12])
    assert reading.num_asked == sum(told)
    spans = [Span(1, 0, 30), Span(0, 9, 1)]
    drafter.follow(Plan(1, 1500, spans=spans))
    assert drafter.reads_step, "a part of a prompt"
    drafter.read(spans, states)
    for reading.has_much in (False, True):
        reading.num_asked = 0
        assert drafter.takes_in == reading.has_much
        drafter.draft(spans, {})
        assert reading.num_asked == reading.has_much


class Lagging(Willing):
    """Computes what it lacks in the first steps in which drafts are asked for, and drafts behind that."""

    def __init__(self, server: Server) -> None:
        self.server, self.num_lacking = server, 0

    @property
    def catches_up(self) -> bool:
        return True

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        if not wanted or self.num_lacking == 0:
            return super().draft(spans, wanted)
        self.num_lacking -= 1
        self.server.now += 20
        return {}


def test_what_is_computed_before_drafts_is_not_what_steps_take() -> None:
    server = Server(lambda has_drafts: 5.0 if has_drafts else 1.0, right=0)
    lagging = server.drafter.inner = Lagging(server)
    for _ in range(40):
        lagging.num_lacking = 3
        server.run(64)
    assert server.times._costs[2].plain.seconds == pytest.approx(1.0, rel=0.01)


def test_nothing_is_asked_where_no_row_is_left_or_no_draft_can_pay() -> None:
    server = Server(lambda _: 1.0, right=2)
    assert not server.drafter.worth(0, {0: 2}), "all of them are late"
    drafter = PayingDrafter(Reading(), row_cost=0.1, times=server.times)
    for step in range(128):
        spans = [Span(slot, 9, 1) for slot in range(10)]
        drafter.follow(Plan(1, step, spans=spans, open_drafts=dict.fromkeys(range(10), 2)))
        assert not drafter.worth(10, dict.fromkeys(range(10), 2))
        assert not drafter.takes_in
        assert not drafter.reads_step


class Following(Willing):
    """Keeps what it was to follow last."""

    spans: Sequence[Span] = ()

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        self.spans = spans
        return super().draft(spans, wanted)


def followed(drafter: PayingDrafter, spans: list[Span], wanted: Mapping[int, int]) -> Sequence[Span]:
    """The spans that the inner drafter is to follow, for a step of these spans."""
    following = drafter.inner = Following()
    drafter.follow(Plan(1, 1, spans=spans, open_drafts=dict(wanted)))
    drafter.draft(spans, drafter.worth(len(spans), wanted) if wanted else {})
    return following.spans


def test_who_drafts_computes_no_prompts_where_that_does_not_pay() -> None:
    prompt, decode = Span(1, 0, 30), Span(0, 9, 1)
    paying = Server(lambda _: 1.0, right=2)
    paying.run(64)
    assert followed(paying.drafter, [prompt, decode], {0: 2}) == [prompt, decode]
    assert followed(paying.drafter, [prompt], {}) == [prompt]
    many = [Span(slot, 9, 1) for slot in range(2, 5)]
    assert followed(paying.drafter, [prompt, *many[:1]], {}) == [prompt, *many[:1]]
    assert not followed(paying.drafter, [prompt, *many[:2]], {}), "too many sequences will generate"
    costly = Server(lambda has_drafts: 9.0 if has_drafts else 1.0, right=0)
    costly.run(64)
    assert not followed(costly.drafter, [prompt, decode], {0: 2})
    assert not followed(costly.drafter, [prompt], {})


def test_slots_are_judged_once_until_more_is_known_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is drafted that would take as long as to launch a step of a small model."""
    server = Server(lambda has_drafts: 9.0 if has_drafts else 1.0, right=2)
    server.run(64 * 3 + 1)
    judged, expected = list[int](), server.drafter.rates.expected

    def watched(slot: int, number: int) -> float:
        judged.append(slot)
        return expected(slot, number)

    monkeypatch.setattr(server.drafter.rates, "expected", watched)
    assert not any(server.run(40))
    assert not judged
    server.drafter.follow(Plan(1, 1, admitted=[Admit(1, [5], 1, [0], SamplingParams())]))
    server.run(2)
    assert judged == [0, 1]
    server.run(1, num_rows=1)
    assert judged == [0, 1, 0]


def test_drafts_that_pay_go_on() -> None:
    server = Server(lambda has_drafts: 1.5 if has_drafts else 1.0, right=1)
    server.run(64)
    assert 0 < server.part_of_time(has_drafts=False) < 0.035


@pytest.mark.parametrize("right", [0, 2])
def test_what_comes_behind_a_step_is_not_measured_as_the_next_one(right: int) -> None:
    """The tokens of a step are handed out while the next one is computed, which takes longer by that."""
    server = Server(lambda _: 0.0, right)
    costs, before = {True: 2.0, False: 1.0}, [False]

    def cost(has_drafts: bool) -> float:
        tokens = 2 * (1 + right * before[0])
        before[0] = has_drafts
        return costs[has_drafts] + 0.5 * tokens

    server.cost = cost
    server.run(200)
    drafted, plain = (mean.seconds for mean in (server.times._costs[2].drafted, server.times._costs[2].plain))
    assert drafted == pytest.approx(2.0 + 0.5 * 2 * (1 + right), rel=0.01)
    assert plain == pytest.approx(2.0, rel=0.01)


def test_where_drafts_begin_to_pay_they_begin_again() -> None:
    costs = {True: 5.0, False: 1.0}
    server = Server(costs.__getitem__, right=2)
    server.run(100)
    costs[True] = 1.5
    server.run(2000)
    assert server.part_of_time(has_drafts=True) > 0.95


def test_what_does_not_pay_with_few_rows_is_not_tried_with_more_at_once() -> None:
    server = Server(lambda has_drafts: 5.0 if has_drafts else 1.0, right=0)
    server.run(100, num_rows=3)
    assert not any(server.run(8, num_rows=3))
    assert not any(server.run(8, num_rows=4))
    assert sum(server.run(64, num_rows=2)) == 4, "but with fewer: it may pay there"


def test_what_pays_with_few_rows_is_tried_with_more() -> None:
    costs = {True: 1.5, False: 1.0}
    server = Server(costs.__getitem__, right=2)
    server.run(100)
    costs[True] = 5.0
    assert any(server.run(64, num_rows=8))
    assert not any(server.run(8, num_rows=8))
    costs[True] = 1.5
    server.run(4000, num_rows=8)
    assert sum(server.run(100, num_rows=8)) > 90, "and tried again"


def test_steps_of_changing_numbers_of_rows_are_measured() -> None:
    server = Server(lambda has_drafts: 5.0 if has_drafts else 1.0, right=0)
    drawn = random.Random(1).choices((2, 3), k=1000)
    drafted = [has for num_rows in drawn for has in server.run(1, num_rows)]
    assert 0 < sum(drafted[200:]) < 40


@pytest.mark.parametrize("length", [4, 5, 7, 9])
@pytest.mark.parametrize(("seconds", "least", "most"), [(1.0, 0.9, 1.0), (9.0, 0.0, 0.05)])
def test_short_replies_are_measured_between_the_prompts_of_others(
    length: int, seconds: float, least: float, most: float
) -> None:
    server, has_drafts = Server(lambda drafted: seconds if drafted else 1.0, right=2), list[bool]()
    for _ in range(2000 // length):
        admit = Admit(0, [5], 1, [0], SamplingParams())
        server.drafter.follow(Plan(1, 0, admitted=[admit], spans=[Span(0, 0, 5)]))
        server.now += 1.0
        has_drafts += server.run(length, num_rows=1)
    assert least <= sum(has_drafts[1000:]) / len(has_drafts[1000:]) <= most


def test_a_pause_between_requests_is_no_slow_step() -> None:
    server = Server(lambda has_drafts: 1.5 if has_drafts else 1.0, right=1)
    server.run(100)
    for _ in range(3):
        server.run(20)
        server.now += 1000
    assert sum(server.run(64)) >= 64 - 8, "but for those that are tried"


def test_steps_that_compute_more_than_open_spans_are_not_compared() -> None:
    server = Server(lambda has_drafts: 1.5 if has_drafts else 1.0, right=1)
    server.run(64)
    for _ in range(50):
        server.drafter.follow(
            Plan(1, 1, admitted=[Admit(3, [5], 1, [0], SamplingParams())], spans=[Span(3, 0, 1)])
        )
        server.now += 100
    assert sum(server.run(64)) >= 60


def test_all_ranks_do_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(lambda _: 1.0, right=2)
    monkeypatch.setattr(server.times._group, "gather_numbers", lambda *mine: [(0,), mine])
    assert not any(server.run(20))
