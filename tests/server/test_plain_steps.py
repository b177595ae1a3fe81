"""Steps of plain decodes by one call into C: the tokens and bits of all other steps, and what they leave to these."""

import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Sequential
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import torch
from counting_model import counting_model, eagle_head, medusa_heads
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_kernels.native.decode_step import DecodeStep
from penstock_kernels.native.recording import Calls
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.pending import Computed
from penstock_server.engine.plain_steps import PlainSteps
from penstock_server.engine.plan import Admit, Append, Drafts, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from sampler_rows import random_params

NUM_SLOTS, PROMPT_LEN = 8, 3
DRAWN = SamplingParams(temperature=0.9, top_k=30, top_p=0.8, seed=5)
OTHERS = {
    "a penalty": SamplingParams(repetition_penalty=1.3),
    "top tokens": SamplingParams(num_top_logprobs=2),
    "a bias": SamplingParams(logit_bias_ids=(5,), logit_bias_values=(2.0,)),
}


@pytest.fixture
def engine(saved_model: Callable[..., Any]) -> Engine:
    return make_engine(saved_model(head_dim=16).folder, num_slots=NUM_SLOTS, num_blocks=8 * NUM_SLOTS)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step that was asked for: whether it was one call."""
    found: list[bool] = []
    launch = PlainSteps.launch

    def watched(*given: Any) -> Computed | None:
        step = launch(*given)
        found.append(step is not None)
        return step

    monkeypatch.setattr(PlainSteps, "launch", watched)
    return found


def begin(engine: Engine, params: list[SamplingParams], num_decodes: int = 1) -> None:
    """Slots whose sizes of steps are recorded; the next decode is at `PROMPT_LEN + num_decodes`."""
    slots = range(len(params))
    admitted = [
        Admit(slot, [5 + slot, 6, 7], PROMPT_LEN, list(range(8 * slot, 8 * slot + 8)), params[slot])
        for slot in slots
    ]
    assert (
        not engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, PROMPT_LEN) for slot in slots]))
        .resolve()
        .errors
    )
    for number in range(num_decodes):
        assert not decode(engine, len(params), PROMPT_LEN + number).errors


def decode(engine: Engine, count: int, start: int, **more: Any) -> Outcome:
    spans = [Span(slot, start, 1) for slot in range(count)]
    return engine.launch(Plan(1, start, spans=spans, **more)).resolve()


def shown(outcome: Outcome) -> list[Any]:
    tokens = outcome.sampled_slots, outcome.sampled_ids, outcome.sampled_logprobs
    return [*tokens, [str(error) for error in outcome.errors]]


def sequences(seed: int, vocab_size: int) -> list[Sequence]:
    """Sequences of many lengths, most of them plain."""
    rng = random.Random(seed)
    return [
        Sequence(
            [rng.randrange(5, vocab_size) for _ in range(rng.randint(1, 9))],
            rng.randint(1, 20),
            rng.choice([SamplingParams(), DRAWN, DRAWN, random_params(rng)]) if rng.random() < 0.9 else DRAWN,
        )
        for _ in range(NUM_SLOTS)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_bits_are_those_of_other_steps(engine: Engine, computed: list[bool], seed: int) -> None:
    """Whatever comes between: prompts in pieces, blocks, preemptions, and rows that need more."""

    def told() -> list[Any]:
        engine.clear()
        done = Driver(execute_on(engine), NUM_SLOTS, 8 * NUM_SLOTS).run(
            sequences(seed, 61), seed, max_chunk=4
        )
        return [(sequence.output, sequence.logprobs, sequence.errors) for sequence in done]

    told()
    by_one_call = told()
    assert any(computed)
    assert not all(computed)
    engine._plain = None
    assert told() == by_one_call


def test_states_go_on_as_in_other_steps(tmp_path: Path, computed: list[bool]) -> None:
    options = {**CASES["lfm2"], "hidden_size": 64}
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    engine = make_engine(tmp_path, num_slots=NUM_SLOTS, num_blocks=8 * NUM_SLOTS, num_snapshots=4)

    def told() -> list[Any]:
        engine.clear()
        begin(engine, [SamplingParams(), DRAWN, DRAWN])
        return [shown(decode(engine, 3, PROMPT_LEN + 1 + number)) for number in range(8)]

    told()
    computed.clear()
    by_one_call = told()
    assert computed[-8:] == [True] * 8
    # A span that does not follow the state is refused, as ever.
    [error] = decode(engine, 1, PROMPT_LEN + 1).errors
    assert "does not follow" in error.message
    engine._plain = None
    assert told() == by_one_call


# One family for each way to norm, activate, rotate and write keys that the ops in C have.
@pytest.mark.parametrize(
    "name",
    [
        "cohere-normed",
        "cohere2_moe",
        "exaone4",
        "falcon-7b",
        "gemma2",
        "gemma4_text",
        "gemma4_text-experts",
        "gemma4_text-keys-as-values",
        "gpt2",
        "granite",
        "hunyuan_v1_dense",
        "mpt",
        "nanochat",
        "olmo2",
        "opt",
        "phi",
    ],
)
def test_steps_of_other_families_are_one_call_too(tmp_path: Path, computed: list[bool], name: str) -> None:
    sizes = {"d_model": 128, "n_heads": 8} if name == "mpt" else {"hidden_size": 128}
    # Families without a head_dim of their own have 8 heads.
    has_head_dim = CASES[name].get("head_dim", True) is not None
    # A soft cap takes rows of fours.
    sizes["vocab_size"] = 304
    options = {**CASES[name], **sizes, "head_dim": 16 if has_head_dim else None}
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    engine = make_engine(tmp_path, num_slots=NUM_SLOTS, num_blocks=8 * NUM_SLOTS)

    def told() -> list[Any]:
        engine.clear()
        begin(engine, [SamplingParams(), DRAWN])
        return [shown(decode(engine, 2, PROMPT_LEN + 1 + number)) for number in range(3)]

    told()
    computed.clear()
    by_one_call = told()
    assert computed[-3:] == [True] * 3
    engine._plain = None
    assert told() == by_one_call


def test_open_spans_in_which_nothing_is_drafted_begin_where_their_slots_stand(
    engine: Engine, computed: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.drafter, "worth", lambda *_: {})
    begin(engine, [SamplingParams()] * 2)
    spans = [Span(slot, PROMPT_LEN + 3, 1) for slot in range(2)]
    outcome = engine.launch(Plan(1, 9, spans=spans, open_drafts={0: 2, 1: 2})).resolve()
    assert (outcome.sampled_slots, outcome.errors, computed[-1]) == ([0, 1], [], True)
    assert engine.slots.states[0].length == PROMPT_LEN + 3


@pytest.mark.parametrize("params", OTHERS.values(), ids=OTHERS.keys())
def test_a_row_that_needs_more_is_left_to_other_steps(
    engine: Engine, computed: list[bool], params: SamplingParams
) -> None:
    begin(engine, [SamplingParams(), params, DRAWN], num_decodes=2)
    assert not any(computed)
    assert decode(engine, 3, PROMPT_LEN + 2).sampled_slots == [0, 1, 2]


REFUSED: dict[str, tuple[list[Span], str]] = {
    "twice": ([Span(0, 4, 1), Span(1, 4, 1), Span(1, 4, 1)], "two spans"),
    "no such slot": ([Span(0, 4, 1), Span(7, 4, 1)], "not in use"),
    "beyond all slots": ([Span(0, 4, 1), Span(99, 4, 1)], "not below num_slots"),
    "behind its tokens": ([Span(0, 4, 1), Span(1, 5, 1)], "not within"),
    "too long": ([Span(0, 4, 1), Span(1, 4, 2)], "not within"),
}


@pytest.mark.parametrize(("spans", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_decode_is_refused_alone(
    engine: Engine, computed: list[bool], spans: list[Span], message: str
) -> None:
    begin(engine, [SamplingParams(), DRAWN])
    outcome = engine.launch(Plan(1, 9, spans=spans)).resolve()
    assert not computed[-1]
    assert [message in error.message for error in outcome.errors] == [True]
    assert outcome.sampled_slots == [0]


def test_blocks_come_before_the_step_that_needs_them(
    saved_model: Callable[..., Any], computed: list[bool]
) -> None:
    engine = make_engine(saved_model(head_dim=16).folder, num_slots=2, num_blocks=8)
    admitted = [Admit(0, [5, 6, 7], PROMPT_LEN, [0], SamplingParams())]
    engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, PROMPT_LEN)])).resolve()
    decode(engine, 1, PROMPT_LEN)
    [error] = decode(engine, 1, PROMPT_LEN + 1).errors
    assert "needs more than the slot's 1 blocks" in error.message
    engine.clear()
    engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, PROMPT_LEN)])).resolve()
    decode(engine, 1, PROMPT_LEN)
    assert not decode(engine, 1, PROMPT_LEN + 1, appended=[Append(0, [5])]).errors
    assert computed[-1]


def test_more_decodes_than_a_step_may_have_are_refused(
    saved_model: Callable[..., Any], computed: list[bool]
) -> None:
    engine = make_engine(saved_model(head_dim=16).folder, num_slots=4, num_blocks=8, max_step_tokens=2)
    for slot in range(4):
        admitted = [Admit(slot, [5 + slot], 1, [slot], SamplingParams())]
        engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, 1)])).resolve()
    for slots in ((0, 1), (2, 3)):
        spans = [Span(slot, 1, 1) for slot in slots]
        assert not engine.launch(Plan(1, 2, spans=spans)).resolve().errors
    assert computed[-1]
    outcome = engine.launch(Plan(1, 3, spans=[Span(slot, 2, 1) for slot in range(3)])).resolve()
    assert not computed[-1]
    assert ["max_step_tokens" in error.message for error in outcome.errors] == [True]
    assert outcome.sampled_slots == [0, 1]


@pytest.fixture
def spoiled(engine: Engine) -> Iterator[Engine]:
    """Its second slot has logits that are no numbers, from the second decode on."""
    begin(engine, [SamplingParams(), DRAWN, SamplingParams()])
    weights = engine.cache.pools[0]
    kept = weights.clone()
    block = engine.slots.rows.block_table[1, 0]
    weights[:, :, block] = torch.nan
    yield engine
    weights.copy_(kept)


def test_logits_that_are_no_numbers_fail_their_slot_alone(spoiled: Engine, computed: list[bool]) -> None:
    outcome = decode(spoiled, 3, PROMPT_LEN + 1)
    assert computed[-1]
    assert [(error.slot, error.code.value) for error in outcome.errors] == [(1, "not_finite")]
    assert outcome.sampled_slots == [0, 2]
    # It goes on, as plans in flight count on its token.
    assert spoiled.slots.states[1].length == PROMPT_LEN + 3


@pytest.mark.parametrize("number", [-2, 3], ids=["no memory to choose", "an op fails"])
def test_a_failure_fails_the_requests_and_changes_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The call is made to return what it returns then: there is no op that could be made to fail from outside."""
    begin(engine, [SamplingParams(), DRAWN], num_decodes=2)
    monkeypatch.setattr(Calls, "failure", lambda *_: MemoryError("no memory"))
    [step] = engine._plain._steps.values() if engine._plain else []
    assert isinstance(step, DecodeStep)
    with monkeypatch.context() as failing:
        failing.setattr(step, "_step", lambda _call: number)
        outcome = decode(engine, 2, PROMPT_LEN + 2)
    assert [(error.slot, error.code.value) for error in outcome.errors] == [
        (0, "out_of_memory"),
        (1, "out_of_memory"),
    ]
    assert engine.slots.states[0].length == PROMPT_LEN + 3
    assert decode(engine, 2, PROMPT_LEN + 2).sampled_slots == [0, 1]


class Guesses(Drafter):
    """Stands in for drafters that are right now and then: knows the tokens of each slot, and changes some of them."""

    def __init__(self, engine: Engine, known: Mapping[int, Sequential[int]], seed: int) -> None:
        self._states, self._known, self._rng = engine.slots.states, known, random.Random(seed)
        self.accepted: list[tuple[int, int]] = []

    def draft(self, spans: Sequential[Span], wanted: Mapping[int, int]) -> Drafts:
        return {slot: self._guess(slot, most) for slot, most in wanted.items()}

    def accept(self, slot: int, num_right: int) -> None:
        self.accepted.append((slot, num_right))

    def _guess(self, slot: int, most: int) -> tuple[int, ...]:
        first, count = self._states[slot].length, self._rng.randint(0, most)
        return tuple(
            token if self._rng.random() < 0.7 else token ^ 1
            for token in self._known[slot][first : first + count]
        )


def tokens_of(engine: Engine, num_slots: int) -> dict[int, list[int]]:
    """The tokens that these slots have."""
    lengths = {slot: engine.slots.states[slot].length for slot in range(num_slots)}
    return {slot: tokens.tolist() for slot, tokens in engine.slots.rows.known_tokens(lengths).items()}


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_right_and_wrong_as_in_other_steps(
    engine: Engine, computed: list[bool], seed: int
) -> None:
    """Drafts for some slots, for none, and as many as there are."""
    params, num_steps = [SamplingParams(), DRAWN, SamplingParams(temperature=0.7, seed=9)], 5
    begin(engine, params, num_decodes=28)
    known = tokens_of(engine, len(params))

    def told() -> list[Any]:
        engine.clear()
        begin(engine, params)
        engine.drafter = guesses = Guesses(engine, known, seed)
        steps = [decode(engine, 3, 60, open_drafts={0: 4, 1: 3, 2: 1}) for _ in range(num_steps)]
        assert tokens_of(engine, 3) == {
            slot: known[slot][: engine.slots.states[slot].length] for slot in range(3)
        }
        return [*map(shown, steps), [step.num_drafted for step in steps], guesses.accepted[-3 * num_steps :]]

    told()
    computed.clear()
    by_one_call = told()
    assert computed[-num_steps:] == [True] * num_steps
    engine._plain = None
    apart = told()
    # Other steps are told of drafts when the next one begins, and of none where there are none.
    rights = [(slot, right) for slot, right in by_one_call.pop() if right]
    others = [(slot, right) for slot, right in apart.pop() if right]
    assert others == rights[: len(others)]
    assert by_one_call == apart


def test_a_draft_whose_row_gets_no_token_is_not_right(engine: Engine, computed: list[bool]) -> None:
    params = [DRAWN, SamplingParams(temperature=0.9, seed=7)]
    begin(engine, params, num_decodes=28)
    known = tokens_of(engine, 2)
    length = PROMPT_LEN + 2
    spoiled = known[0][length]
    assert spoiled not in known[0][:length]
    assert spoiled not in known[1]
    decoder: Any = engine.model
    embeddings = decoder.embedding.weight

    def told() -> list[Any]:
        engine.clear()
        begin(engine, params)
        engine.drafter = Guesses(engine, known, 0)
        kept = embeddings[spoiled].clone()
        embeddings[spoiled] = torch.nan
        try:
            drafts = {slot: tuple(known[slot][length : length + 2]) for slot in range(2)}
            engine.drafter.draft = lambda *_: drafts  # type: ignore[method-assign]
            steps = [decode(engine, 2, 60, open_drafts={0: 2, 1: 2})]
            engine.drafter.draft = lambda *_: {}  # type: ignore[method-assign]
            steps.append(decode(engine, 2, 60, open_drafts={0: 2, 1: 2}))
        finally:
            embeddings[spoiled] = kept
        return [*map(shown, steps), steps[0].num_drafted]

    told()
    by_one_call = told()
    (first, *_, no_errors), (_, *_, errors), num_drafted = by_one_call
    assert (first, no_errors, num_drafted) == ([0, 1, 1, 1], [], {0: 2, 1: 2})
    assert len(errors) == 1
    assert computed[-2:] == [True] * 2
    engine._plain = None
    assert told() == by_one_call


@pytest.mark.parametrize("heads", [eagle_head, medusa_heads])
@pytest.mark.parametrize("period", [3, 30])
def test_who_reads_hidden_states_is_told_those_of_one_call(
    saved_model: Callable[..., Any],
    tmp_path: Path,
    computed: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    heads: Callable[..., Path],
    period: int,
) -> None:
    """More steps than a head waits for before it computes what it was told."""
    model, num_blocks = counting_model(saved_model, tmp_path / "model", head_dim=16), 32
    engine = make_engine(
        model, num_slots=2, num_blocks=2 * num_blocks, draft_model_path=heads(model, tmp_path / "heads")
    )
    engine.drafter = unlimited(engine.drafter)
    steps = count(1)
    monkeypatch.setattr(
        engine.drafter, "worth", lambda _num_rows, wanted: {} if next(steps) % period else wanted
    )

    def told() -> list[Any]:
        engine.clear()
        admitted = [
            Admit(
                slot,
                [5 + slot, 6, 7],
                PROMPT_LEN,
                [*range(num_blocks * slot, num_blocks * (slot + 1))],
                DRAWN,
            )
            for slot in range(2)
        ]
        engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, PROMPT_LEN) for slot in range(2)]))
        last = 4 * num_blocks - 1
        return [shown(decode(engine, 2, last, open_drafts={0: 3, 1: 2})) for _ in range(60)]

    told()
    computed.clear()
    by_one_call = told()
    assert sum(computed) == 60, "with drafts and without"
    engine._plain = None
    assert told() == by_one_call
    assert [len(slots) for slots, *_ in by_one_call[period - 1 :: period]] == [7] * (60 // period)
