"""Drafts for slots with grammars: the tokens are those without drafts, illegal drafts are cut, and matchers go back."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_model import counting_model, eagle_head, medusa_heads
from driver import Execute, execute_on, make_engine
from open_spans import MAX_DRAFTS, NUM_BLOCKS, Told, admit, check_same, prompt
from penstock_server.engine import constrained_slot
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.matcher import Matcher
from penstock_server.engine.ngram_drafter import NgramDrafter
from penstock_server.engine.paying_drafter import PayingDrafter
from penstock_server.engine.plan import Admit, Drafts, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from thread_ranks import engines, execute_on_all

NUM_TOKENS = 20
# Where next to all drafts are right, and their masks are there.
_MOST_STEPS_IN_TIME = 2 + NUM_TOKENS // (1 + MAX_DRAFTS) + 1
END = 2
SIZES: dict[str, Any] = {"max_sequence_len": 40, "num_slots": 10, "num_blocks": 10 * NUM_BLOCKS}
NESTED = Grammar("lark", 'start: e\ne: "(" e ")" | e "+" e | "x"')
ARRAY = Grammar("json_schema", '{"type": "array", "items": {"enum": ["ab", "cd"]}}')
CASES = [
    (SamplingParams(), Grammar("regex", "[ab]{30}")),
    (SamplingParams(temperature=1.3, seed=4), Grammar("regex", "([0-9]{3}x[ab]+y){9}")),
    (SamplingParams(temperature=0.8, seed=5, num_top_logprobs=2), NESTED),
    (SamplingParams(frequency_penalty=1.5), ARRAY),
    (SamplingParams(temperature=1.0, seed=6), None),
]


class Guessing(Drafter):
    """Drafts by a function of the slot and how many tokens it has got."""

    def __init__(self, engine: Engine, guess: Callable[[int, int, int], Sequence[int]]) -> None:
        self._slots = engine.slots
        self._guess = guess

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        states = self._slots.states
        return {
            slot: tuple(self._guess(slot, states[slot].length - len(prompt(slot)), most))
            for slot, most in wanted.items()
        }


def patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded machine cuts no drafts, and is late with no mask."""
    monkeypatch.setattr("penstock_server.engine.grammar._PATIENCE_S", 5.0)
    monkeypatch.setattr("penstock_server.engine.grammar._PATIENCE_WITH_DRAFTS_S", 5.0)
    monkeypatch.setattr(constrained_slot, "_LONG_S", 5.0)
    monkeypatch.setattr(constrained_slot, "_IN_TIME_AGAIN", 0)


def play(
    execute: Execute,
    max_drafts: int | None,
    cases: Sequence[tuple[SamplingParams, Grammar | None]] = tuple(CASES),
    given: Sequence[Sequence[int]] = (),
) -> list[Told]:
    """A sequence for each case, up to its end or `NUM_TOKENS`; `given`: tokens that they have already."""
    told = [Told(ids=list(ids)) for ids in given] or [Told() for _ in cases]
    admitted = [admitted_with(slot, *case, told[slot].ids) for slot, case in enumerate(cases)]
    spans = [Span(it.slot, 0, len(it.token_ids)) for it in admitted]
    plan, step = Plan(1, 1, admitted=admitted, spans=spans), 1
    while plan.spans:
        outcome = execute(plan)
        for slot, it in enumerate(told):
            it.add(outcome, slot)
        going = [slot for slot, it in enumerate(told) if len(it.ids) < NUM_TOKENS and END not in it.ids]
        spans = [Span(slot, len(prompt(slot)) + len(told[slot].ids) - 1, 1) for slot in going]
        step += 1
        plan = Plan(
            1, step, spans=spans, open_drafts={} if max_drafts is None else dict.fromkeys(going, max_drafts)
        )
    return [cut(it) for it in told]


def admitted_with(slot: int, params: SamplingParams, grammar: Grammar | None, ids: Sequence[int]) -> Admit:
    return replace(admit(slot, params), token_ids=prompt(slot) + list(ids), grammar=grammar)


def cut(told: Told) -> Told:
    """Removes the tokens after the end, which the router drops."""
    end = told.ids.index(END) + 1 if END in told.ids else NUM_TOKENS
    return replace(told, ids=told.ids[:end], logprobs=told.logprobs[:end], tops=told.tops[:end])


@pytest.fixture(params=[{}, {"head_dim": 16}], ids=["free", "recorded"])
def engine(
    saved_model: Callable[..., Any], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    patiently(monkeypatch)
    return make_engine(saved_model(**request.param).folder, **SIZES)


def right(expected: list[Told], rng: random.Random | None = None) -> Callable[[int, int, int], Sequence[int]]:
    """Guesses the tokens that come; with `rng` some guesses are wrong, legal or not, and the end comes early."""

    def guess(slot: int, start: int, most: int) -> Sequence[int]:
        ids = expected[slot].ids[start : start + most]
        if rng is None:
            return ids
        others = [END, rng.randrange(300), rng.choice(expected[slot].ids)]
        return [token if rng.random() < 0.7 else rng.choice(others) for token in ids]

    return guess


def test_tokens_are_those_without_drafts(engine: Engine) -> None:
    expected = play(execute_on(engine), None)
    drafters: list[Drafter] = [
        Guessing(engine, right(expected)),
        *(Guessing(engine, right(expected, random.Random(seed))) for seed in range(3)),
        PayingDrafter(NgramDrafter(engine.slots)),
    ]
    for drafter in drafters:
        engine.clear()
        engine.drafter = drafter
        got = play(execute_on(engine), MAX_DRAFTS)
        check_same(got, expected)
        if drafter is drafters[0]:
            assert all(it.num_steps <= _MOST_STEPS_IN_TIME for it in got)


def test_illegal_drafts_are_cut(engine: Engine) -> None:
    cases = CASES[:3]
    expected = play(execute_on(engine), None, cases)
    legal = {slot: it.ids[1] for slot, it in enumerate(expected)}
    engine.clear()
    engine.drafter = Guessing(
        engine, lambda slot, start, _most: [legal[slot], 0, 0] if start == 1 else [0, 0]
    )
    got = play(execute_on(engine), MAX_DRAFTS, cases)
    check_same(got, expected)
    assert [it.num_drafted for it in got] == [1, 1, 1]


def test_a_sequence_goes_on_from_its_tokens(engine: Engine) -> None:
    expected = play(execute_on(engine), None)
    engine.drafter = Guessing(engine, right(expected))
    engine.clear()
    got = play(execute_on(engine), MAX_DRAFTS, given=[it.ids[:7] for it in expected])
    assert [it.ids for it in got] == [it.ids for it in expected]


def few_steps(told: Told) -> bool:
    """Whether next to all that was drafted was right."""
    return told.num_steps <= _MOST_STEPS_IN_TIME


def test_a_model_drafts_for_itself(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows what the grammars allow: what it would say without them is never legal."""
    patiently(monkeypatch)
    folder: Path = saved_model().folder
    expected = play(execute_on(make_engine(folder, **SIZES)), None)
    options = {"draft_model_path": folder, **SIZES}
    engine = make_engine(folder, **options)
    engine.drafter = unlimited(engine.drafter)
    got = play(execute_on(engine), MAX_DRAFTS)
    check_same(got, expected)
    assert all(map(few_steps, got))
    with engines(folder, 2, monkeypatch, **options) as ranks:
        for rank in ranks:
            rank.drafter = unlimited(rank.drafter)
        got = play(execute_on_all(ranks), MAX_DRAFTS)
    assert [it.ids for it in got] == [it.ids for it in expected]
    assert all(map(few_steps, got))


@pytest.mark.parametrize("heads", [eagle_head, medusa_heads])
def test_heads_know_what_grammars_allow(
    saved_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    heads: Callable[[Path, Path], Path],
) -> None:
    patiently(monkeypatch)
    folder = counting_model(saved_model, tmp_path / "model", head_dim=16)
    expected = play(execute_on(make_engine(folder, **SIZES)), None)
    engine = make_engine(folder, draft_model_path=heads(folder, tmp_path / "heads"), **SIZES)
    engine.drafter = unlimited(engine.drafter)
    got = play(execute_on(engine), MAX_DRAFTS)
    check_same(got, expected)
    # No drafts are cut; heads of MEDUSA do not know which of the tokens before them were allowed.
    assert sum(it.num_drafted for it in got) > 2 * sum(it.num_steps for it in got)
    assert heads is medusa_heads or all(map(few_steps, got))


def test_a_guess_whose_mask_is_late_ends_the_draft(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    patiently(monkeypatch)
    folder: Path = saved_model().folder
    expected = play(execute_on(make_engine(folder, **SIZES)), None, CASES[:2])
    engine = make_engine(folder, draft_model_path=folder, **SIZES)
    engine.drafter = unlimited(engine.drafter)
    monkeypatch.setattr("penstock_server.engine.grammar._PATIENCE_WITH_DRAFTS_S", 0.05)
    fill = Matcher.fill

    def slow(self: Matcher, masks: Any, apart: Any) -> None:
        fill(self, masks, apart)
        if len(masks) == 1:
            time.sleep(0.5)

    monkeypatch.setattr(Matcher, "fill", slow)
    got = play(execute_on(engine), MAX_DRAFTS, CASES[:2])
    check_same(got, expected)
    assert 0 < sum(it.num_drafted for it in got) <= sum(it.num_steps for it in got)


def test_all_ranks_cut_the_same(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is none, so that clocks decide what is known in time."""
    folder: Path = saved_model().folder
    expected = play(execute_on(make_engine(folder, **SIZES)), None)
    monkeypatch.setattr("penstock_server.engine.grammar._PATIENCE_WITH_DRAFTS_S", 0.0)
    with engines(folder, 2, monkeypatch, **SIZES) as ranks:
        for rank in ranks:
            rank.drafter = Guessing(rank, right(expected, random.Random(1)))
        got = play(execute_on_all(ranks), MAX_DRAFTS)
    assert [it.ids for it in got] == [it.ids for it in expected]


def test_masks_that_are_late_behind_drafts_cost_drafts_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few late masks make more steps than all that are in time, however slow the machine is beside them."""
    expected = play(execute_on(engine), None, CASES[:1])
    monkeypatch.setattr("penstock_server.engine.grammar._PATIENCE_S", 0.0)
    monkeypatch.setattr(constrained_slot, "_IN_TIME_AGAIN", 0)
    fill = Matcher.fill

    def slow(self: Matcher, masks: Any, apart: Any) -> None:
        if len(masks) == 1:
            time.sleep(0.05)
        fill(self, masks, apart)

    monkeypatch.setattr(Matcher, "fill", slow)
    engine.drafter = Guessing(engine, right(expected))
    engine.clear()
    got = play(execute_on(engine), MAX_DRAFTS, CASES[:1])
    check_same(got, expected)
    assert got[0].num_drafted > 0
    assert got[0].num_steps > _MOST_STEPS_IN_TIME


def test_an_error_along_a_wrong_draft_is_none_of_the_slots(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(execute_on(engine), None, CASES[:2])
    along = Matcher.fill

    def broken(self: Matcher, masks: Any, apart: Any) -> None:
        if len(masks) == 1:
            self._matcher.consume_token(299)  # allowed nowhere
        along(self, masks, apart)

    monkeypatch.setattr(Matcher, "fill", broken)
    engine.drafter = Guessing(engine, right(expected, random.Random(2)))
    engine.clear()
    got = play(execute_on(engine), MAX_DRAFTS, CASES[:2])
    check_same(got, expected)
    assert all(it.num_drafted <= 2 * MAX_DRAFTS for it in got)
