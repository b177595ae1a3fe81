"""Sequences whose decodes are open spans, beside the same without drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from driver import Execute, make_engine
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

MAX_LEN = 40
MAX_DRAFTS = 4
# The number of tokens before a slot with two plans in flight might be full.
NUM_COMPARED = 20
NUM_BLOCKS = MAX_LEN // 4
DRAWN = SamplingParams(temperature=1.1, seed=9)
SIZES: dict[str, Any] = {
    "max_sequence_len": MAX_LEN,
    "num_slots": 10,
    "num_blocks": 10 * NUM_BLOCKS,
    "max_step_tokens": 100,
}

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


@dataclass
class Told:
    """The outputs of one slot."""

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


def drafting(folder: Path, draft: Path, **options: Any) -> Engine:
    """A poisoned engine that drafts as many as it may: what a drafter did not compute makes its drafts wrong."""
    engine = make_engine(folder, draft_model_path=draft, is_poisoned=True, **{**SIZES, **options})
    engine.drafter = unlimited(engine.drafter)
    return engine


def prompt(slot: int) -> list[int]:
    """A prompt whose length differs between slots; the first token tells the slot."""
    return [slot, *range(200, 205 + slot % 3)]


def admit(slot: int, params: SamplingParams) -> Admit:
    blocks = list(range(NUM_BLOCKS * slot, NUM_BLOCKS * (slot + 1)))
    return Admit(slot, prompt(slot), len(prompt(slot)), blocks, params)


def play(
    engine: Engine,
    params: list[SamplingParams],
    max_drafts: int | None,
    more: Sequence[Mapping[str, Any]] = (),
) -> list[Told]:
    """A sequence for each of these, with two plans in flight; decodes are open spans if there is a `max_drafts`.

    `more`: further fields of the admissions of the first sequences.
    """
    engine.clear()
    told = [Told() for _ in params]
    fields = [*more, *[{}] * (len(params) - len(more))]
    admitted = [
        replace(admit(slot, each), **others)
        for slot, (each, others) in enumerate(zip(params, fields, strict=True))
    ]
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


def generate(
    execute: Execute,
    told: Told,
    slot: int,
    tokens: list[int],
    start: int,
    count: int,
    blocks: list[int],
    max_drafts: int | None = MAX_DRAFTS,
    chunk: int = MAX_LEN,
) -> Told:
    """So many tokens behind `tokens`, of which all before `start` are computed; then the slot is given back."""
    retired = [slot] if told.num_steps else []
    admitted = [Admit(slot, tokens, len(tokens), blocks, DRAWN)]
    while start < len(tokens):
        span = Span(slot, start, min(chunk, len(tokens) - start))
        told.add(execute(Plan(1, 1, retired=retired, admitted=admitted, spans=[span])), slot)
        retired, admitted, start = [], [], span.end
    begun = len(told.ids) - 1
    while len(told.ids) - begun < count:
        position = len(tokens) + len(told.ids) - begun - 1
        open_drafts = {} if max_drafts is None else {slot: max_drafts}
        told.add(execute(Plan(1, 2, spans=[Span(slot, position, 1)], open_drafts=open_drafts)), slot)
    return told
