"""Stages that compute at the same time: none waits for the one behind it, or for a step that another never gets."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import drafting_driver
import pytest
import thread_ranks
from counting_model import counting_model, eagle_head
from drafting_driver import DraftingDriver
from driver import Driver, Execute, Sequence, make_engine
from open_spans import EVERYTHING
from overlap import play_overlapped, share
from penstock_server.base.errors import StaleEpoch
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from test_eagle import random_head
from test_pipeline import RECORDED, Told, adapter_of_all_layers, batch, check

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


@pytest.fixture(params=["alone", "with heads"])
def stages(
    saved_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[list[Engine]]:
    """Two of them; those of heads tell the first one hidden states, too."""
    options = {} if request.param == "alone" else {"draft_model_path": random_head(tmp_path / "heads")[0]}
    with thread_ranks.engines(saved_model().folder, 2, monkeypatch, num_stages=2, **options) as ranks:
        yield ranks


def of_epoch(epoch: int) -> list[Plan]:
    return [replace(plan, epoch=epoch) for plan in PLANS]


def run(engine: Engine, plans: list[Plan]) -> list[Outcome]:
    """Executes the plans as the step loop does, one after the other."""
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
    """The tokens that one rank chooses."""
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


# The slots and blocks of each play; several plays have steps in flight at the same time.
NUM_SLOTS, NUM_BLOCKS = 16, 300
# Long enough that a model of random weights repeats itself.
NUM_DRAFTED = 60


def _play(number: int, adapter_id: str, execute: Execute) -> Told:
    """A part of everything that a request may ask for, in odd pieces and with preemptions."""
    driver = Driver(execute)
    share(driver, number, NUM_SLOTS, NUM_BLOCKS)
    # Grammar, adapter and log probabilities of the prompt are the last ones.
    return Told.of(driver.run(batch(adapter_id)[::-1][number::2], seed=number))


def _play_drafting(number: int, execute: Execute) -> Told:
    driver = DraftingDriver(execute, lambda: None, NUM_SLOTS, NUM_BLOCKS)
    share(driver, number, NUM_SLOTS, NUM_BLOCKS)
    found = [Sequence([5, 6, 7] * 4, NUM_DRAFTED), Sequence([8, 9] * 5, NUM_DRAFTED, EVERYTHING["drawn"])]
    driver.play(found, random.Random(1))
    assert driver.num_right > 0, "drafts were right"
    # A step may give more than they want.
    outputs = [it.output[:NUM_DRAFTED] for it in found]
    return Told(outputs, [each for it in found for each in it.logprobs[:NUM_DRAFTED]])


@pytest.mark.parametrize(("num_stages", "drafter"), [(2, "ngram"), (3, "ngram"), (2, "draft"), (3, "eagle")])
def test_steps_in_flight_choose_what_they_do_alone(
    num_stages: int,
    drafter: str,
    saved_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One more than there are stages, or as many."""
    monkeypatch.setattr(drafting_driver, "_LOSS", 0)
    folder = saved_model(tie_word_embeddings=True, **RECORDED).folder
    adapter = adapter_of_all_layers(tmp_path / "adapter")
    sizes: dict[str, Any] = {
        "num_slots": 3 * NUM_SLOTS,
        "num_blocks": 3 * NUM_BLOCKS,
        "is_poisoned": True,
    }
    if drafter == "draft":
        sizes["draft_model_path"] = folder
    elif drafter == "eagle":
        folder = counting_model(saved_model, tmp_path / "model", **RECORDED)
        sizes["draft_model_path"] = eagle_head(folder, tmp_path / "head")

    def plays(engines: list[Engine]) -> list[Callable[[Execute], Told]]:
        loaded = {engine.slots.adapters.load(adapter, "", "test").adapter_id for engine in engines}
        [adapter_id] = loaded
        return [partial(_play, 0, adapter_id), partial(_play, 1, adapter_id), partial(_play_drafting, 2)]

    one = [make_engine(folder, **sizes)]
    want = [told for play in plays(one) for told in play_overlapped(one, [play])]
    with thread_ranks.engines(folder, num_stages, monkeypatch, num_stages=num_stages, **sizes) as ranks:
        check(play_overlapped(ranks, plays(ranks)), want)
