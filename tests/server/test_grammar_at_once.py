"""Constrained rows on the short way: chosen by the call that chooses plain ones, under masks that the step computes."""

from collections.abc import Callable
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_kernels.native import choose as native
from penstock_server.engine import constrained_slot, grammar
from penstock_server.engine.constrained_slot import ConstrainedSlot
from penstock_server.engine.engine import Engine
from penstock_server.engine.grammar_threads import Job
from penstock_server.engine.plan import Grammar
from penstock_server.engine.sampling_params import SamplingParams

PROMPT = [5, 6, 7, 8]
LETTERS = Grammar("regex", "[ab]{3}x[a-z]+")
NUM_TOKENS = 14
DRAWN = SamplingParams(temperature=1.5, seed=3, top_k=40)
PENALISED = SamplingParams(repetition_penalty=1.2)


@pytest.fixture(scope="module")
def recorded(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(saved_model(head_dim=16).folder)


@pytest.fixture
def engine(recorded: Engine) -> Engine:
    recorded.clear()
    # No clock decides whether a mask is late.
    recorded.slots.grammars.is_patient = True
    return recorded


@pytest.fixture
def tells(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each time that a slot is told a token: whether the step's thread computes the mask behind it."""
    found: list[bool] = []
    tell = ConstrainedSlot.tell

    def counted(slot: ConstrainedSlot, token_ids: list[int], is_at_once: bool = False) -> None:
        found.append(is_at_once)
        tell(slot, token_ids, is_at_once)
        assert slot.is_ready or not is_at_once

    monkeypatch.setattr(ConstrainedSlot, "tell", counted)
    return found


def tokens(engine: Engine, *params: SamplingParams) -> list[list[int]]:
    """The outputs of sequences with these parameters and a grammar, and of a plain one before them."""
    constrained = [Sequence(PROMPT, NUM_TOKENS, it, LETTERS) for it in params]
    sequences = [Sequence(PROMPT, NUM_TOKENS), *constrained]
    assert not any(sequence.errors for sequence in Driver(execute_on(engine)).run(sequences))
    return [sequence.output for sequence in sequences]


def set_brief(monkeypatch: pytest.MonkeyPatch, brief_s: float, room_s: float = 1e9) -> None:
    monkeypatch.setattr(constrained_slot, "_BRIEF_S", brief_s)
    monkeypatch.setattr(constrained_slot, "_LONG_S", max(brief_s, 1.0))
    monkeypatch.setattr(grammar, "_MOST_AT_ONCE_S", room_s)


@pytest.mark.parametrize("params", [SamplingParams(), DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("is_alone", [False, True])
def test_a_constrained_row_is_chosen_in_the_recorded_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, is_alone: bool
) -> None:
    steps: list[tuple[int, int]] = []
    stage, choose = engine.staging.stage_decodes, native.choose

    def staged(decodes: Any, is_recorded: bool, *rest: Any) -> Any:
        assert is_recorded
        steps.append((decodes.num_decodes, len(decodes.apart)))
        return stage(decodes, is_recorded, *rest)

    def chosen(logits: Any, *rest: Any) -> Any:
        assert len(rest[-1].rows) == 1
        return choose(logits, *rest)

    monkeypatch.setattr(engine.staging, "stage_decodes", staged)
    monkeypatch.setattr(native, "choose", chosen)
    sequences = [Sequence(PROMPT, NUM_TOKENS, params, LETTERS)]
    if not is_alone:
        sequences.append(Sequence(PROMPT, NUM_TOKENS))
    Driver(execute_on(engine)).run(sequences)
    assert steps == [(len(sequences), 1)] * (NUM_TOKENS - 1)


def test_the_short_way_gives_the_tokens_of_the_long_one(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixtures = [(SamplingParams(), DRAWN), (DRAWN, PENALISED), (PENALISED,)]
    short = [tokens(engine, *params) for params in mixtures]
    monkeypatch.setattr(native, "supports", lambda _logits: False)
    assert [tokens(engine, *params) for params in mixtures] == short
    monkeypatch.setattr(engine.slots._table, "decodes", lambda *_: None)
    assert [tokens(engine, *params) for params in mixtures] == short


def test_masks_are_computed_at_once_after_some_brief_ones(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tells: list[bool]
) -> None:
    set_brief(monkeypatch, brief_s=1e9)
    at_once = tokens(engine, SamplingParams())
    # The mask that a token is chosen under counts before the one behind it is begun.
    num_apart = constrained_slot._NUM_BRIEF - 1
    assert tells == [False] * num_apart + [True] * (NUM_TOKENS - num_apart)
    tells.clear()
    set_brief(monkeypatch, brief_s=0.0)
    assert tokens(engine, SamplingParams()) == at_once
    assert tells == [False] * NUM_TOKENS


def test_a_step_computes_no_more_masks_at_once_than_there_is_room_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tells: list[bool]
) -> None:
    monkeypatch.setattr(Job, "cost_s", lambda _job: 1.0)
    set_brief(monkeypatch, brief_s=1.0, room_s=2.5)
    monkeypatch.setattr(constrained_slot, "_MAX_TOKEN_S", 1e9)
    monkeypatch.setattr(constrained_slot, "_MAX_TOTAL_S", 1e9)
    tokens(engine, *[SamplingParams()] * 3)
    num_steps = NUM_TOKENS - (constrained_slot._NUM_BRIEF - 1)
    assert sum(tells) == 2 * num_steps, "of three slots two"


def test_a_slot_that_took_long_once_leaves_the_steps_thread_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tells: list[bool]
) -> None:
    set_brief(monkeypatch, brief_s=1.0)
    costs = iter([0.0] * 6 + [1.5] + [0.0] * NUM_TOKENS)
    count = ConstrainedSlot._count_brief
    monkeypatch.setattr(ConstrainedSlot, "_count_brief", lambda slot, _cost_s: count(slot, next(costs)))
    tokens(engine, SamplingParams())
    assert tells == [False] * 3 + [True] * 3 + [False] * (NUM_TOKENS - 6)
