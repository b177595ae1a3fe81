"""Open spans: a step drafts tokens and gives as many as were right and one more; these are those without drafts."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from driver import make_engine
from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine import slots
from penstock_server.engine.drafting import draft
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Grammar, Numbers, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import outcome_to_pb, plan_from_pb

MAX_LEN = 40
MAX_DRAFTS = 4
# As many as there are before a slot with two plans in flight might be full.
NUM_COMPARED = 20
NUM_BLOCKS = MAX_LEN // 4

EVERYTHING = {
    "greedy": SamplingParams(),
    "drawn": SamplingParams(temperature=1.2, seed=7, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.9),
    "top logprobs": SamplingParams(num_top_logprobs=3),
    "penalties": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.3),
    "drawn under penalties": SamplingParams(temperature=1.0, seed=3, frequency_penalty=1.5),
    "bias": SamplingParams(logit_bias_ids=(4, 9), logit_bias_values=(2.0, -3.0)),
    "min tokens": SamplingParams(min_new_tokens=9, suppressed_ids=tuple(range(0, 300, 2))),
    "watermark": SamplingParams(temperature=0.7, seed=11, watermark_delta=2.0, watermark_gamma=0.5),
    "banned": SamplingParams(banned_ids=(17, 3, 4, 5), banned_lens=(1, 2, 1)),
    "allowed": SamplingParams(allowed_mask=bytes([0b10101010] * 38)),
}
FEW = SamplingParams(allowed_mask=bytes([0, 0b111] + [0] * 36))

Drafter = Callable[[Numbers, int], tuple[int, ...]]


@pytest.fixture
def engine(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(
        saved_model().folder,
        max_step_tokens=100,
        max_sequence_len=MAX_LEN,
        num_slots=10,
        num_blocks=10 * NUM_BLOCKS,
    )


@dataclass
class Told:
    """What a slot got."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[list[int]] = field(default_factory=list)
    num_drafted: int = 0
    num_steps: int = 0

    def add(self, outcome: Outcome, slot: int) -> None:
        assert not outcome.errors
        mine = [number for number, other in enumerate(outcome.sampled_slots) if other == slot]
        self.ids += [outcome.sampled_ids[number] for number in mine]
        self.logprobs += [outcome.sampled_logprobs[number] for number in mine]
        self.tops += [top.token_ids for top in outcome.top_tokens if top.slot == slot]
        self.num_drafted += outcome.num_drafted.get(slot, 0)
        self.num_steps += bool(mine)


def prompt(slot: int) -> list[int]:
    """Of a length that differs between slots; the first token tells the slot."""
    return [slot, *range(200, 205 + slot % 3)]


def admit(slot: int, params: SamplingParams) -> Admit:
    blocks = list(range(NUM_BLOCKS * slot, NUM_BLOCKS * (slot + 1)))
    return Admit(slot, prompt(slot), len(prompt(slot)), blocks, params)


def play(engine: Engine, params: list[SamplingParams], max_drafts: int | None) -> list[Told]:
    """A sequence for each of these, with two plans in flight; decodes are open spans if there is a `max_drafts`."""
    engine.clear()
    told = [Told() for _ in params]
    admitted = [admit(slot, each) for slot, each in enumerate(params)]
    prompts = [Span(it.slot, 0, it.prompt_len) for it in admitted]
    flying = [engine.launch(Plan(1, 1, admitted=admitted, spans=prompts))]
    while any(len(it.ids) < NUM_COMPARED for it in told):
        number = told[0].num_steps + len(flying)
        if max_drafts is None:
            spans = [Span(it.slot, it.prompt_len + number - 1, 1) for it in admitted]
            plan = Plan(1, 1 + number, spans=spans)
        else:
            spans = [
                Span(it.slot, MAX_LEN - 1, 1) for it in admitted if len(told[it.slot].ids) < NUM_COMPARED
            ]
            plan = Plan(1, 1 + number, spans=spans, open_drafts={span.slot: max_drafts for span in spans})
        flying.append(engine.launch(plan))
        outcome = flying.pop(0).resolve()
        for slot, it in enumerate(told):
            it.add(outcome, slot)
    return told


def check_same(got: list[Told], expected: list[Told]) -> None:
    for mine, plain in zip(got, expected, strict=True):
        assert mine.ids[:NUM_COMPARED] == plain.ids[:NUM_COMPARED]
        assert mine.logprobs[:NUM_COMPARED] == pytest.approx(plain.logprobs[:NUM_COMPARED], abs=1e-4)
        assert mine.tops[:NUM_COMPARED] == plain.tops[:NUM_COMPARED]


def foreseeing(expected: list[Told], rng: random.Random | None = None) -> Drafter:
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


def test_drafts_change_nothing_but_how_many_tokens_a_step_gives(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = list(EVERYTHING.values())
    expected = play(engine, params, None)
    monkeypatch.setattr(slots, "draft", foreseeing(expected))
    foreseen = play(engine, params, MAX_DRAFTS)
    check_same(foreseen, expected)
    assert all(it.num_steps <= 2 + -(-NUM_COMPARED // (MAX_DRAFTS + 1)) for it in foreseen)
    for seed in range(2):
        monkeypatch.setattr(slots, "draft", foreseeing(expected, random.Random(seed)))
        check_same(play(engine, params, MAX_DRAFTS), expected)
    monkeypatch.setattr(slots, "draft", lambda _tokens, count: (1,) * count)
    check_same(play(engine, params, MAX_DRAFTS), expected)


def test_drafts_of_the_sequence_itself_change_nothing(engine: Engine) -> None:
    params = [FEW, replace(FEW, temperature=0.5, seed=5)]
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    # Of three tokens one soon comes again.
    assert got[0].num_drafted > 0
    assert got[0].num_steps < expected[0].num_steps


def test_nothing_is_drafted_where_layers_have_states(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = play(engine, [SamplingParams()], None)
    monkeypatch.setattr(slots, "draft", lambda _tokens, count: (1,) * count)
    description = replace(engine.description, abilities=(*engine.description.abilities, "recurrent"))
    recurrent = Engine(engine.model, engine.cache, engine.slots, engine.group, description)
    got = play(recurrent, [SamplingParams()], MAX_DRAFTS)
    check_same(got, expected)
    assert got[0].num_drafted == 0


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


BAD_OPEN: dict[str, tuple[dict[str, Any], Span, int]] = {
    "is not a decode": ({}, Span(0, 4, 1), 1),
    "span 6..8 is not a decode": ({}, Span(0, 6, 2), 1),
    "need more than the slot's 2 blocks": ({}, Span(0, 6, 1), 2),
    "max_step_tokens": ({"block_ids": list(range(10))}, Span(0, 6, 1), 20),
    "do not fit": ({"block_ids": list(range(10))}, Span(0, 6, 1), 33),
    "with a grammar": ({"grammar": Grammar("regex", "[a-z]+")}, Span(0, 5, 1), 1),
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

    def broken(hidden: torch.Tensor, adapters: torch.Tensor | None) -> torch.Tensor:
        logits = compute(hidden, adapters)
        if next(calls) == 1:
            logits[2] = torch.nan
        return logits

    monkeypatch.setattr(engine.model, "logits", broken)
    monkeypatch.setattr(slots, "draft", lambda tokens, _count: tuple(expected[len(tokens) - 6 :][:4]))
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
    outcome = Outcome(
        1, 2, sampled_slots=[4, 4], sampled_ids=[8, 9], sampled_logprobs=[-1.0, -2.0], num_drafted={4: 5}
    )
    message = outcome_to_pb(outcome, rank=0)
    assert (list(message.drafted_slots), list(message.drafted_counts)) == ([4], [5])
    assert not outcome_to_pb(outcome, rank=1).drafted_slots
