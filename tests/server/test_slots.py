"""Plans as deltas: what is refused is refused for its slot alone, and other slots and earlier plans go on."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import ErrorCode, InvalidPlan
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Append, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

PROMPT = [5, 6, 7, 8, 9, 10]
GOOD = Admit(0, PROMPT, 6, [0, 1], SamplingParams())


@pytest.fixture
def engine(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(saved_model().folder, max_step_tokens=16, max_sequence_len=40)


def run(engine: Engine, **fields: Any) -> Outcome:
    return engine.launch(Plan(1, 1, **fields)).resolve()


BAD_ADMITS = {
    "not below num_slots": replace(GOOD, slot=8),
    "is not below 301": replace(GOOD, slot=1, token_ids=[5, 301], prompt_len=2),
    "is not below 64": replace(GOOD, slot=1, block_ids=[64]),
    "between 1 and max_sequence_len 40": replace(GOOD, slot=1, token_ids=[1] * 41),
    "0 tokens": replace(GOOD, slot=1, token_ids=[]),
    "prompt_len 7": replace(GOOD, slot=1, prompt_len=7),
    "prompt_len 0": replace(GOOD, slot=1, prompt_len=0),
    "11 blocks": replace(GOOD, slot=1, block_ids=[1] * 11),
    "adapter x is not loaded": replace(GOOD, slot=1, adapter_id="x"),
}


@pytest.mark.parametrize("message", BAD_ADMITS)
def test_bad_admit_harms_nobody_else(engine: Engine, message: str) -> None:
    bad = BAD_ADMITS[message]
    expected = run(engine, admitted=[GOOD], spans=[Span(0, 0, 6)])
    engine.clear()
    spans = [Span(bad.slot, 0, 2), Span(0, 0, 6)]
    outcome = run(engine, admitted=[bad, GOOD], spans=spans)
    assert outcome.sampled_slots == [0]
    assert outcome.sampled_ids == expected.sampled_ids
    assert [(error.slot, error.code) for error in outcome.errors] == [(bad.slot, ErrorCode.INVALID)]
    assert message in outcome.errors[0].message


BAD_SAMPLING: dict[str, list[Any]] = {
    "temperature": [-0.1, math.nan, math.inf],
    "top_p": [0.0, 1.1, math.nan],
    "min_p": [-0.1, 1.1],
    "typical_p": [0.0, 2.0],
    "repetition_penalty": [0.0, -1.0, math.inf],
    "frequency_penalty": [math.inf],
    "presence_penalty": [math.nan],
    "num_top_logprobs": [21],
    "logprob_ids": [(4,)],
    "logit_bias_ids": [(4,), (301, 2)],
    "suppressed_ids": [(301,), tuple(range(301))],
}


@pytest.mark.parametrize("name", BAD_SAMPLING)
def test_sampling_parameters_out_of_range_are_refused(engine: Engine, name: str) -> None:
    for value in BAD_SAMPLING[name]:
        engine.clear()
        given: dict[str, Any] = {name: value}
        if value == (301, 2):
            given["logit_bias_values"] = (1.0, 1.0)
        outcome = run(engine, admitted=[replace(GOOD, sampling=SamplingParams(**given))])
        assert [error.code for error in outcome.errors] == [ErrorCode.INVALID], value
    engine.clear()
    assert not run(
        engine, admitted=[replace(GOOD, sampling=SamplingParams(temperature=1e-40, top_p=1e-30))]
    ).errors


BAD_SPANS = {
    "not in use": Span(3, 0, 1),
    "not below num_slots": Span(99, 0, 1),
    "not within the slot's 6 tokens": Span(1, 5, 2),
    "0..0 is not within": Span(1, 0, 0),
    "than the slot's 1 blocks": Span(1, 0, 6),
}


@pytest.mark.parametrize("message", BAD_SPANS)
def test_bad_span_harms_nobody_else(engine: Engine, message: str) -> None:
    short = replace(GOOD, slot=1, block_ids=[9])
    outcome = run(engine, admitted=[GOOD, short], spans=[BAD_SPANS[message], Span(0, 0, 6)])
    assert outcome.sampled_slots == [0]
    assert [error.slot for error in outcome.errors] == [BAD_SPANS[message].slot]
    assert message in outcome.errors[0].message


def test_decodes_are_staged_the_same_beside_a_longer_span(engine: Engine) -> None:
    admits = [GOOD, replace(GOOD, slot=3, token_ids=[40, *PROMPT[1:]], block_ids=[9, 4])]
    engine.slots.apply(Plan(1, 1, admitted=admits))
    decodes = [Span(3, 0, 1), Span(3, 5, 1), Span(0, 5, 1)]
    alone = engine.staging.stage(decodes).forward
    in_batch = engine.staging.stage([*decodes, Span(0, 0, 2)]).forward
    assert alone is not None
    assert in_batch is not None
    assert alone.token_ids.tolist() == in_batch.token_ids[:3].tolist() == [40, 10, 10]
    assert alone.positions.tolist() == in_batch.positions[:3].tolist() == [0, 5, 5]
    size = engine.slots.limits.block_size
    third, first = [9, 4][5 // size], [0, 1][5 // size]
    places = [9 * size, third * size + 5 % size, first * size + 5 % size]
    assert alone.cache_positions.tolist() == in_batch.cache_positions[:3].tolist() == places
    assert torch.equal(alone.spans.block_tables, in_batch.spans.block_tables[:3])


def test_a_refused_slot_stays_refused_until_it_is_retired(engine: Engine) -> None:
    run(engine, admitted=[replace(GOOD, token_ids=[999], prompt_len=1)])
    for fields in ({"spans": [Span(0, 0, 1)]}, {"appended": [Append(0, [3])]}):
        outcome = run(engine, **fields)
        assert [(error.slot, error.code) for error in outcome.errors] == [(0, ErrorCode.INVALID)]
        assert "999" in outcome.errors[0].message
    outcome = run(engine, retired=[0], admitted=[GOOD], spans=[Span(0, 0, 6)])
    assert outcome.sampled_slots == [0]
    assert not outcome.errors


def test_blocks_of_a_slot_in_error_are_never_taken_from_its_predecessor(engine: Engine) -> None:
    run(engine, admitted=[replace(GOOD, slot=5, block_ids=[30, 31])])
    run(engine, retired=[5])
    muddled = {
        "retired": [5],
        "admitted": [replace(GOOD, slot=5, block_ids=[])],
        "appended": [Append(5, [40, 41])],
    }
    assert [error.slot for error in run(engine, **muddled).errors] == [5]
    assert [error.slot for error in run(engine, spans=[Span(5, 0, 6)]).errors] == [5]


def test_two_spans_of_one_slot_are_refused(engine: Engine) -> None:
    other = replace(GOOD, slot=1, block_ids=[4, 5])
    outcome = run(engine, admitted=[GOOD, other], spans=[Span(0, 0, 3), Span(1, 0, 6), Span(0, 3, 3)])
    assert outcome.sampled_slots == [1]
    assert [error.slot for error in outcome.errors] == [0]


def test_spans_past_the_step_budget_are_refused(engine: Engine) -> None:
    admits = [replace(GOOD, slot=slot, block_ids=[2 * slot, 2 * slot + 1]) for slot in range(3)]
    outcome = run(engine, admitted=admits, spans=[Span(slot, 0, 6) for slot in range(3)])
    assert outcome.sampled_slots == [0, 1]
    assert "max_step_tokens 16" in outcome.errors[0].message


def test_a_full_slot_cannot_grow(engine: Engine) -> None:
    full = replace(GOOD, token_ids=[3] * 40, block_ids=list(range(10)))
    run(engine, admitted=[full], spans=[Span(0, 0, 16)])
    run(engine, spans=[Span(0, 16, 16)])
    assert "max_sequence_len is 40" in run(engine, spans=[Span(0, 32, 8)]).errors[0].message


def test_retiring_and_admitting_in_one_plan_reuses_slot_and_blocks(engine: Engine) -> None:
    fresh = run(engine, admitted=[replace(GOOD, token_ids=[9, 9, 9], prompt_len=3)], spans=[Span(0, 0, 3)])
    engine.clear()
    run(engine, admitted=[GOOD], spans=[Span(0, 0, 6)])
    again = replace(GOOD, token_ids=[9, 9, 9], prompt_len=3)
    outcome = run(engine, retired=[0], admitted=[again], spans=[Span(0, 0, 3)])
    assert outcome.sampled_ids == fresh.sampled_ids
    assert [error.slot for error in run(engine, retired=[5]).errors] == [5]


def test_blocks_appended_in_pieces_keep_their_order(engine: Engine) -> None:
    expected = run(engine, admitted=[GOOD], spans=[Span(0, 0, 6)])
    engine.clear()
    run(engine, admitted=[replace(GOOD, block_ids=[])])
    outcome = run(engine, appended=[Append(0, [7]), Append(0, [3])], spans=[Span(0, 0, 6)])
    assert engine.slots.rows.block_table[0, :2].tolist() == [7, 3]
    assert outcome.sampled_ids == expected.sampled_ids


def test_copied_blocks_serve_another_slot(engine: Engine) -> None:
    admit = replace(GOOD, block_ids=[0, 1], sampling=SamplingParams(num_top_logprobs=3))
    first = run(engine, admitted=[admit], spans=[Span(0, 0, 6)])
    copy = replace(admit, slot=1, block_ids=[20, 21])
    outcome = run(engine, admitted=[copy], copied_from=[0, 1], copied_to=[20, 21], spans=[Span(1, 5, 1)])
    assert outcome.sampled_ids == first.sampled_ids
    assert outcome.top_tokens[0].logprobs == pytest.approx(first.top_tokens[0].logprobs, abs=1e-5)


@pytest.mark.parametrize("fields", [{"copied_from": [0]}, {"copied_from": [0], "copied_to": [64]}])
def test_bad_copies_condemn_the_plan_and_change_nothing(engine: Engine, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidPlan):
        run(engine, admitted=[GOOD], **fields)
    assert not engine.slots.states


def test_a_step_of_nothing_is_answered(engine: Engine) -> None:
    assert run(engine).sampled_ids == []


def test_not_finite_logits_fail_their_slot_alone(engine: Engine) -> None:
    other = replace(GOOD, slot=1, block_ids=[4, 5])
    expected = run(engine, admitted=[GOOD, other], spans=[Span(0, 0, 6), Span(1, 0, 6)])
    decoded = run(engine, spans=[Span(0, 6, 1)])
    engine.clear()
    run(engine, admitted=[GOOD, other], spans=[Span(0, 0, 6), Span(1, 0, 6)])
    engine.cache.pools[0][:, :, 4] = float("nan")
    outcome = run(engine, spans=[Span(0, 6, 1), Span(1, 6, 1)])
    assert outcome.sampled_slots == [0]
    assert outcome.sampled_ids == decoded.sampled_ids
    assert [(error.slot, error.code) for error in outcome.errors] == [(1, ErrorCode.NOT_FINITE)]
    assert expected.sampled_slots == [0, 1]


def test_a_plan_can_be_launched_before_the_one_before_is_resolved(engine: Engine) -> None:
    expected = Driver(execute_on(engine)).run([Sequence(PROMPT, 3)])[0].output
    first = engine.launch(Plan(2, 1, admitted=[GOOD], spans=[Span(0, 0, 6)]))
    second = engine.launch(Plan(2, 2, spans=[Span(0, 6, 1)]))
    third = engine.launch(Plan(2, 3, spans=[Span(0, 7, 1)]))
    assert [pending.resolve().sampled_ids[0] for pending in (first, second, third)] == expected


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0, seed=77, top_p=0.9)])
def test_replay_after_preemption_continues_the_same(engine: Engine, params: SamplingParams) -> None:
    whole = Driver(execute_on(engine)).run([Sequence(PROMPT, 10, params)])[0].output
    engine.clear()
    replayed = Sequence(PROMPT, 10, params, output=whole[:4])
    assert Driver(execute_on(engine)).run([replayed])[0].output == whole


def test_seeds_decide_and_company_does_not(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model().folder)

    def sequences() -> list[Sequence]:
        return [
            Sequence(PROMPT[: 2 + n % 3], 6, SamplingParams(temperature=1.5, seed=2**63 + n))
            for n in range(6)
        ]

    alone = [Driver(execute_on(engine)).run([sequence])[0].output for sequence in sequences()]
    for seed in range(3):
        engine.clear()
        assert [s.output for s in Driver(execute_on(engine)).run(sequences(), seed)] == alone
    assert len({tuple(output) for output in alone}) == 6


def test_min_new_tokens_holds_back_the_suppressed_ids(engine: Engine) -> None:
    free = Driver(execute_on(engine)).run([Sequence(PROMPT, 4)])[0].output
    engine.clear()
    params = SamplingParams(min_new_tokens=3, suppressed_ids=(free[0],))
    held = Driver(execute_on(engine)).run([Sequence(PROMPT, 5, params)])[0].output
    assert free[0] not in held[:3]


def test_an_unsupported_grammar_is_reported(engine: Engine) -> None:
    engine.slots.grammars.matchers.available = False
    outcome = run(engine, admitted=[replace(GOOD, grammar=Grammar("regex", "a+"))], spans=[Span(0, 0, 6)])
    assert [(error.slot, error.code) for error in outcome.errors] == [(0, ErrorCode.GRAMMAR)]
