"""Open spans: a step drafts tokens and gives as many as were right and one more; these are those without drafts."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from driver import make_engine
from open_spans import (
    DRAWN,
    EVERYTHING,
    MAX_DRAFTS,
    MAX_LEN,
    NUM_BLOCKS,
    NUM_COMPARED,
    Told,
    admit,
    check_same,
    play,
    prompt,
)
from penstock_kernels import AdapterRows
from penstock_server.base.config import DraftLimits
from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine import suffix_drafter
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.history_drafter import LONGEST_RUN, with_prediction
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.ngram_drafter import NgramDrafter, draft
from penstock_server.engine.outcome import Outcome, Tokens
from penstock_server.engine.paying_drafter import PayingDrafter
from penstock_server.engine.plan import Drafts, Numbers, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.suffix_drafter import SuffixDrafter
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import Encoding, outcome_to_pb, plan_from_pb

FEW = SamplingParams(allowed_mask=bytes([0, 0b111] + [0] * 36))

Guess = Callable[[Numbers, int], tuple[int, ...]]


class Guessing(Drafter):
    """Drafts what a function makes of the tokens of a slot."""

    def __init__(self, engine: Engine, guess: Guess) -> None:
        self._slots = engine.slots
        self._guess = guess

    def draft(self, spans: Sequence[Span], wanted: Mapping[int, int]) -> Drafts:
        known = self._slots.rows.known_tokens({slot: self._slots.states[slot].length for slot in wanted})
        return {slot: self._guess(known[slot], most) for slot, most in wanted.items()}


def wrong(_tokens: Numbers, count: int) -> tuple[int, ...]:
    return (1,) * count


class Seldom(Guessing):
    """Drafts in one step of so many."""

    def __init__(self, engine: Engine, guess: Guess, period: int) -> None:
        super().__init__(engine, guess)
        self.period, self.num_asked = period, 0

    def worth(self, num_rows: int, wanted: Mapping[int, int]) -> Mapping[int, int]:
        self.num_asked += 1
        return {} if self.num_asked % self.period else wanted


# With head sizes that the ops in C take, steps with drafts are recordings; with others, they run op by op.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "free": ("llama", {}),
    "recorded": ("llama", {"head_dim": 16}),
    "window": ("mistral", {"sliding_window": 6, "head_dim": 16}),
}


@pytest.fixture(params=MODELS)
def engine(saved_model: Callable[..., Any], request: pytest.FixtureRequest) -> Engine:
    family, options = MODELS[request.param]
    return make_engine(
        saved_model(family, **options).folder,
        max_step_tokens=100,
        max_sequence_len=MAX_LEN,
        num_slots=10,
        num_blocks=10 * NUM_BLOCKS,
    )


def foreseeing(expected: list[Told], rng: random.Random | None = None) -> Guess:
    """Knows what comes; with `rng` it is wrong now and then, or silent."""

    def draft(tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
        slot = int(tokens[0])
        start = len(tokens) - len(prompt(slot))
        right = expected[slot].ids[start : start + max_drafts]
        if rng is None:
            return tuple(right)
        told = right[: rng.randrange(max_drafts + 1)]
        return tuple(token if rng.random() < 0.7 else rng.randrange(300) for token in told)

    return draft


def test_drafts_change_nothing_but_how_many_tokens_a_step_gives(engine: Engine) -> None:
    params = list(EVERYTHING.values())
    expected = play(engine, params, None)
    engine.drafter = Guessing(engine, foreseeing(expected))
    foreseen = play(engine, params, MAX_DRAFTS)
    check_same(foreseen, expected)
    assert all(it.num_steps <= 2 + -(-NUM_COMPARED // (MAX_DRAFTS + 1)) for it in foreseen)
    for seed in range(2):
        engine.drafter = Guessing(engine, foreseeing(expected, random.Random(seed)))
        check_same(play(engine, params, MAX_DRAFTS), expected)
    engine.drafter = Guessing(engine, wrong)
    check_same(play(engine, params, MAX_DRAFTS), expected)
    engine.drafter = PayingDrafter(Guessing(engine, wrong))
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    # Four in each of three steps, then three, two … and none.
    assert all(it.num_drafted <= 20 for it in got)


def test_open_spans_that_get_no_drafts_are_decodes_as_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take the way of arrays, and slots with and without drafts take turns in one plan."""
    params = list(EVERYTHING.values())
    expected = play(engine, params, None)
    by_slot = Mock(wraps=engine.slots.select)
    monkeypatch.setattr(engine.slots, "select", by_slot)
    for period, most_by_slot in ((1_000, 1), (3, NUM_COMPARED)):
        engine.drafter = Seldom(engine, foreseeing(expected, random.Random(3)), period)
        by_slot.reset_mock()
        check_same(play(engine, params, MAX_DRAFTS), expected)
        assert 1 <= by_slot.call_count <= most_by_slot


PLAIN = [
    SamplingParams(),
    SamplingParams(temperature=1.2, seed=7, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.9),
    DRAWN,
]


def test_drafts_for_plain_slots_take_the_way_of_arrays(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(engine, PLAIN, None)
    by_slot = Mock(wraps=engine.slots.select)
    monkeypatch.setattr(engine.slots, "select", by_slot)
    for seed in range(4):
        engine.drafter = Guessing(engine, foreseeing(expected, random.Random(seed)))
        by_slot.reset_mock()
        got = play(engine, PLAIN, MAX_DRAFTS)
        check_same(got, expected)
        assert sum(it.num_drafted for it in got) > 0
        # But for the prompts; where steps are not recorded, a step with drafts has a shape of its own.
        assert by_slot.call_count == 1 or not engine.graphs or not engine.graphs.sizes


def test_a_plain_row_that_fails_takes_its_drafts_with_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first row of a slot fails it; what fails behind a draft does not count."""
    expected = play(engine, PLAIN, None)
    engine.clear()
    engine.drafter = Guessing(engine, foreseeing(expected))
    admitted = [admit(slot, params) for slot, params in enumerate(PLAIN)]
    spans = [Span(it.slot, 0, it.prompt_len) for it in admitted]
    engine.launch(Plan(1, 1, admitted=admitted, spans=spans)).resolve()
    draw = engine._sample

    def spoiled(*given: Any) -> Any:
        found = draw(*given)
        found.finite[[0, 7]] = False
        return found

    monkeypatch.setattr(engine, "_sample", spoiled)
    open_spans = [Span(it.slot, MAX_LEN - 1, 1) for it in admitted]
    plan = Plan(1, 2, spans=open_spans, open_drafts=dict.fromkeys(range(3), 2))
    outcome = engine.launch(plan).resolve()
    assert [(error.slot, error.code) for error in outcome.errors] == [(0, ErrorCode.NOT_FINITE)]
    assert outcome.sampled_slots == [1, 1, 1, 2]
    assert outcome.sampled_ids == [*expected[1].ids[1:4], expected[2].ids[1]]
    assert outcome.num_drafted == {1: 2, 2: 2}


def test_a_shard_that_may_draft_nothing_has_a_drafter_that_does_nothing(
    saved_model: Callable[..., Any],
) -> None:
    idle = make_engine(
        saved_model("llama").folder,
        max_sequence_len=MAX_LEN,
        num_slots=10,
        num_blocks=10 * NUM_BLOCKS,
        draft_limits=DraftLimits(max_drafts=0),
    )
    assert type(idle.drafter) is Drafter
    expected = play(idle, [FEW], None)
    got = play(idle, [FEW], MAX_DRAFTS)
    check_same(got, expected)
    assert got[0].num_drafted == 0


@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
def test_drafts_of_the_sequence_itself_change_nothing(engine: Engine, kind: type[Drafter]) -> None:
    params = [FEW, replace(FEW, temperature=0.5, seed=5)]
    assert isinstance(engine.drafter, PayingDrafter)
    assert isinstance(unlimited(engine.drafter), NgramDrafter)
    engine.drafter = PayingDrafter(kind(engine.slots))  # type: ignore[call-arg]
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    # With only three tokens, one soon comes again.
    assert got[0].num_drafted > 0
    assert got[0].num_steps < expected[0].num_steps


@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
def test_what_a_request_predicts_is_drafted(engine: Engine, kind: type[Drafter]) -> None:
    """Right from the first token on, and from where the output comes back to it behind what was predicted wrongly."""
    engine.drafter = PayingDrafter(kind(engine.slots))  # type: ignore[call-arg]
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (3, 4)]
    expected = play(engine, params, None)
    own, half = (tuple(it.ids) for it in expected)
    predicted = [
        {"predicted_ids": own},
        {"predicted_ids": (*half[:4], *reversed(half[4:8]), *half[8:])},
    ]
    for _ in range(2):  # a slot that is used again knows nothing of the request before
        got = play(engine, params, MAX_DRAFTS, predicted)
        check_same(got, expected)
        assert got[0].num_steps < got[1].num_steps < expected[1].num_steps
        assert got[0].num_steps <= 2 + -(-NUM_COMPARED // (MAX_DRAFTS + 1))
    check_same(play(engine, params, MAX_DRAFTS), expected)


def test_a_prediction_stands_between_prompt_and_output() -> None:
    tokens, predicted = np.arange(40), np.array([90, 91])
    history = with_prediction(tokens, 30, predicted)
    assert history.tolist() == [*range(30), 90, 91, *range(30 - LONGEST_RUN, 40)]
    assert with_prediction(tokens[:3], 1, predicted).tolist() == [0, 90, 91, 0, 1, 2]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], (3, 4, 1, 2)),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], (9, 2, 3, 8)),
        ([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], (8, 1, 2, 3)),
        ([7, 7, 7], (7, 7, 7, 7)),
        ([5, 6, 5, 6, 5], (6, 5, 6, 5)),
        ([1, 2, 3, 2], ()),
        ([1, 2], ()),
        ([1], ()),
    ],
)
def test_what_followed_the_longest_run_lately_is_drafted(
    tokens: list[int], expected: tuple[int, ...]
) -> None:
    assert draft(np.array(tokens), 4) == expected
    assert draft(np.array(tokens), 2) == expected[:2]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 1, 2], (3, 4, 1, 2)),
        # Twice as often as lately.
        ([1, 2, 3, 9, 1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 3], (9, 1, 2, 3)),
        # A suffix of three counts as much as two of two, and the last of equals is taken.
        ([5, 2, 3, 7, 1, 2, 3, 8, 4, 2, 3, 7, 1, 2, 3], (8, 4, 2, 3)),
        # After the first token the places differ: a third for each.
        ([1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 5, 8, 9, 9, 1, 2], (5, 8, 9, 9)),
        ([1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2, 8, 1, 2, 4, 1, 2], ()),
        ([7, 7, 7], (7, 7, 7, 7)),
        ([5, 6, 5, 6, 5], (6, 5, 6, 5)),
        ([1, 2, 3, 2], ()),
        ([1, 2], ()),
        ([1], ()),
    ],
)
def test_what_the_longest_suffixes_vote_for_is_drafted(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert suffix_drafter.draft(np.array(tokens), 4) == expected
    assert suffix_drafter.draft(np.array(tokens), 2) == expected[:2]


def test_only_the_last_places_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a long text of few tokens would take long."""
    tokens = np.array([1, 2, 3] * 6 + [9, 1, 2, 4, 8, 1, 2, 4, 7, 1, 2])
    assert suffix_drafter.draft(tokens, 2) == (3, 1)
    monkeypatch.setattr(suffix_drafter, "_MOST_PLACES", 2)
    assert suffix_drafter.draft(tokens, 2) == (4, 7)


BAD_OPEN: dict[str, tuple[dict[str, Any], Span, int]] = {
    "is not a decode": ({}, Span(0, 4, 1), 1),
    "span 6..8 is not a decode": ({}, Span(0, 6, 2), 1),
    "need more than the slot's 2 blocks": ({}, Span(0, 6, 1), 2),
    "max_step_tokens": ({"block_ids": list(range(10))}, Span(0, 6, 1), 20),
    "do not fit": ({"block_ids": list(range(10))}, Span(0, 6, 1), 33),
}


@pytest.mark.parametrize("message", BAD_OPEN)
def test_a_bad_open_span_harms_nobody_else(saved_model: Callable[..., Any], message: str) -> None:
    engine = make_engine(saved_model().folder, max_step_tokens=20, max_sequence_len=MAX_LEN)
    change, span, max_drafts = BAD_OPEN[message]
    change = {"block_ids": [0, 1], **change}
    bad = replace(admit(0, SamplingParams()), **change)
    good = admit(1, SamplingParams())
    engine.launch(Plan(1, 1, admitted=[bad, good], spans=[Span(0, 0, 6), Span(1, 0, 7)])).resolve()
    outcome = engine.launch(Plan(1, 2, spans=[span, Span(1, 7, 1)], open_drafts={0: max_drafts})).resolve()
    assert outcome.sampled_slots == [1]
    assert [(error.slot, error.code) for error in outcome.errors] == [(0, ErrorCode.INVALID)]
    assert message in outcome.errors[0].message


def test_a_row_that_fails_behind_a_draft_fails_in_the_next_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(engine, [SamplingParams()], None)[0].ids
    engine.clear()
    compute = engine.model.logits
    calls = iter(range(9))

    def broken(hidden: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
        logits = compute(hidden, adapters)
        if next(calls) == 1:
            logits[2] = torch.nan
        return logits

    monkeypatch.setattr(engine.model, "logits", broken)
    engine.graphs = None  # a recording calls no model
    engine.drafter = Guessing(engine, lambda tokens, _count: tuple(expected[len(tokens) - 6 :][:4]))
    engine.launch(Plan(1, 1, admitted=[admit(0, SamplingParams())], spans=[Span(0, 0, 6)])).resolve()
    outcome = engine.launch(Plan(1, 2, spans=[Span(0, 6, 1)], open_drafts={0: 4})).resolve()
    assert (outcome.sampled_ids, outcome.errors) == (expected[1:3], [])
    outcome = engine.launch(Plan(1, 3, spans=[Span(0, 20, 1)], open_drafts={0: 4})).resolve()
    assert outcome.sampled_ids == expected[3:8]


def test_the_wire_has_open_spans_and_what_came_of_them() -> None:
    plan = pb.Plan(
        epoch=1,
        step=2,
        span_slots=[3, 4],
        span_starts=[6, 7],
        span_lens=[1, 1],
        open_spans=[1],
        open_drafts=[5],
    )
    assert plan_from_pb(plan).open_drafts == {4: 5}
    for numbers in ([0, 1], [2]):
        with pytest.raises(InvalidPlan, match="open_spans"):
            plan_from_pb(
                pb.Plan(span_slots=[0], span_starts=[0], span_lens=[1], open_spans=numbers, open_drafts=[1])
            )
    outcome = Outcome(1, 2, Tokens.of([4, 4], [8, 9], [-1.0, -2.0]), num_drafted={4: 5})
    message = outcome_to_pb(outcome, Encoding())
    assert (list(message.drafted_slots), list(message.drafted_counts)) == ([4], [5])
    assert not outcome_to_pb(outcome, Encoding(tells_tokens=False)).drafted_slots
