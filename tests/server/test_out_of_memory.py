"""A step that one rank has no memory for fails its requests on all ranks, and nobody else notices."""

from collections.abc import Callable
from typing import Any

import pytest
import thread_ranks
import torch
from driver import make_engine
from penstock_server.engine import Engine
from penstock_server.plan import Admit, ErrorCode, Outcome, Plan, SamplingParams, Span

GREEDY = SamplingParams()
# Slot 0 begins, slot 1 begins beside it, slot 1 is given back, slot 2 begins; slot 0 decodes where it may.
FIRST = Plan(1, 1, admitted=[Admit(0, [5, 6, 7], 3, [0, 1, 2], GREEDY)], spans=[Span(0, 0, 3)])
PROMPT = Plan(1, 2, admitted=[Admit(1, list(range(9, 19)), 10, [3, 4, 5], GREEDY)], spans=[Span(1, 0, 10)])
LATER = Plan(
    1, 3, retired=[1], admitted=[Admit(2, [8, 9], 2, [3, 4], GREEDY)], spans=[Span(0, 3, 1), Span(2, 0, 2)]
)


class Faulty:
    """Stands for a module's forward; runs out of memory when told to."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward
        self.is_due = False

    def __call__(self, *arguments: Any) -> Any:
        if self.is_due:
            self.is_due = False
            raise torch.OutOfMemoryError("injected")
        return self.forward(*arguments)


def break_in(engine: Engine, place: str) -> Faulty:
    module = engine.model.get_submodule(place)  # type: ignore[attr-defined]  # a Model that is a module
    module.forward = Faulty(module.forward)
    fault: Faulty = module.forward
    return fault


def failed(outcome: Outcome) -> list[tuple[int, ErrorCode]]:
    return [(error.slot, error.code) for error in outcome.errors]


@pytest.mark.parametrize("place", ["layers.0.attention", "layers.1.feed_forward", "embedding"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_both_ranks_report_it_and_go_on(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str, place: str
) -> None:
    folder = saved_model(family).folder
    with thread_ranks.engines(folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        fault = break_in(ranks[1], place)
        assert execute(FIRST).sampled_slots == [0]
        fault.is_due = True
        outcome = execute(PROMPT)
        assert failed(outcome) == [(1, ErrorCode.OUT_OF_MEMORY)]
        assert not fault.is_due
        found = execute(LATER)
        assert not found.errors
        for rank in ranks:
            rank.clear()
        unharmed = [execute(plan) for plan in (FIRST, PROMPT, LATER)]
    assert failed(unharmed[1]) == []
    assert (found.sampled_slots, found.sampled_ids) == (unharmed[2].sampled_slots, unharmed[2].sampled_ids)
    assert found.sampled_logprobs == unharmed[2].sampled_logprobs


def test_every_rank_may_be_the_one(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        faults = [break_in(rank, "layers.1.attention") for rank in ranks]
        execute(FIRST)
        for chosen in ([0], [1], [0, 1]):
            for number in chosen:
                faults[number].is_due = True
            assert failed(execute(PROMPT)) == [(1, ErrorCode.OUT_OF_MEMORY)]
            execute(Plan(1, 3, retired=[1]))
        assert execute(LATER_ALONE).sampled_slots == [2]


LATER_ALONE = Plan(1, 4, admitted=[Admit(2, [8, 9], 2, [3, 4], GREEDY)], spans=[Span(2, 0, 2)])


def test_steps_of_decodes_exchange_nothing(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        execute(FIRST)
        exchanged: list[tuple[int, ...]] = []
        for rank in ranks:
            monkeypatch.setattr(rank.group, "gather_numbers", lambda *numbers: exchanged.append(numbers))
        assert execute(Plan(1, 2, spans=[Span(0, 3, 1)])).sampled_slots == [0]
        assert exchanged == []


def test_one_rank_alone_goes_on(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model("llama").folder)
    fault = break_in(engine, "layers.1.attention")
    engine.launch(FIRST).resolve()
    fault.is_due = True
    assert failed(engine.launch(PROMPT).resolve()) == [(1, ErrorCode.OUT_OF_MEMORY)]
    assert engine.launch(LATER).resolve().sampled_slots == [0, 2]
