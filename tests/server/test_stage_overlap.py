"""Stages that compute at the same time: none waits for the one behind it, or for a step that another never gets."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import thread_ranks
from driver import make_engine
from penstock_server.base.errors import StaleEpoch
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

GREEDY = SamplingParams()
# Slot 0 and slot 1 take turns.
PLANS = [
    Plan(1, 1, admitted=[Admit(0, [5, 6, 7], 3, [0, 1, 2], GREEDY)], spans=[Span(0, 0, 3)]),
    Plan(1, 2, admitted=[Admit(1, [9, 8, 7, 6], 4, [3, 4, 5], GREEDY)], spans=[Span(1, 0, 4)]),
    Plan(1, 3, spans=[Span(0, 3, 1)]),
    Plan(1, 4, spans=[Span(1, 4, 1)]),
    Plan(1, 5, spans=[Span(0, 4, 1), Span(1, 5, 1)]),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def stages(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Engine]]:
    """Two of them."""
    with thread_ranks.engines(saved_model().folder, 2, monkeypatch, num_stages=2) as ranks:
        yield ranks


def of_epoch(epoch: int) -> list[Plan]:
    return [replace(plan, epoch=epoch) for plan in PLANS]


def run(engine: Engine, plans: list[Plan]) -> list[Outcome]:
    """As the step loop does, one after the other."""
    engine.clear()
    outcomes = []
    for plan in plans:
        assert engine.agree(plan.epoch, plan.step)
        outcomes.append(engine.launch(plan).resolve())
    return outcomes


def ids(outcomes: list[Outcome]) -> list[list[int]]:
    return [outcome.sampled_ids for outcome in outcomes]


@pytest.fixture
def alone(saved_model: Callable[..., Any]) -> list[list[int]]:
    """What one rank chooses."""
    return ids(run(make_engine(saved_model().folder), PLANS))


def test_no_stage_waits_for_the_one_behind_it(stages: list[Engine], alone: list[list[int]]) -> None:
    first, last = stages
    begun = [first.launch(plan) for plan in PLANS[:2]]
    assert not any(step.ready() for step in begun), "the last stage has not begun"
    told = [last.launch(plan).resolve() for plan in PLANS[:2]]
    assert begun[0].ready()
    # Their tokens are fed to the next steps, whoever asked for their outcome.
    begun += [first.launch(plan) for plan in PLANS[2:4]]
    told += [last.launch(plan).resolve() for plan in PLANS[2:4]]
    begun.append(first.launch(PLANS[4]))
    told.append(last.launch(PLANS[4]).resolve())
    assert ids([step.resolve() for step in begun]) == ids(told) == alone


def test_a_step_that_the_last_stage_never_gets_is_dropped(
    stages: list[Engine], alone: list[list[int]], pool: ThreadPoolExecutor
) -> None:
    first, last = stages
    # Another epoch before, of which the last stage has nothing.
    lost = [first.launch(plan) for plan in PLANS[:2]]
    waiting: Future[Outcome] = pool.submit(lost[0].resolve)
    told = pool.submit(run, last, of_epoch(2))
    with pytest.raises(StaleEpoch, match="step 1 of epoch 1 did not reach the last stage"):
        waiting.result()
    assert ids(run(first, of_epoch(2))) == ids(told.result()) == alone


def test_a_step_that_the_first_stage_never_gets_is_dropped(
    stages: list[Engine], alone: list[list[int]], pool: ThreadPoolExecutor
) -> None:
    first, last = stages
    asked = pool.submit(last.agree, 1, 1)
    begun = pool.submit(run, first, of_epoch(2))
    assert asked.result() is False
    assert ids(run(last, of_epoch(2))) == ids(begun.result()) == alone


def test_a_plan_that_needs_what_was_dropped_is_dropped(
    stages: list[Engine], alone: list[list[int]], pool: ThreadPoolExecutor
) -> None:
    first, last = stages
    first.launch(PLANS[0])
    needing = pool.submit(first.launch, PLANS[2])
    told = pool.submit(run, last, of_epoch(3))
    with pytest.raises(StaleEpoch):
        needing.result()
    assert ids(run(first, of_epoch(3))) == ids(told.result()) == alone
