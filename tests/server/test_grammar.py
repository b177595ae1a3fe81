"""Constrained slots: what they get matches the grammar, survives replay, and harms nobody."""

import json
import re
import threading
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import ErrorCode
from penstock_server.engine import constrained_slot
from penstock_server.engine.constrained_slot import readable
from penstock_server.engine.engine import Engine
from penstock_server.engine.grammar import Grammars
from penstock_server.engine.grammar_threads import GrammarThreads, Job, Kind
from penstock_server.engine.low_priority import LowPriority
from penstock_server.engine.matchers import Matchers
from penstock_server.engine.plan import Admit, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.slot_table import Decodes
from penstock_server.engine.step import Step
from penstock_server.engine.step_clock import StepClock
from tokenizers import Tokenizer

PROMPT = [5, 6, 7, 8]
DIGITS = Grammar("regex", "[0-9]{3}x[ab]+")


@pytest.fixture(scope="module")
def folder(saved_model: Callable[..., Any]) -> Any:
    return saved_model().folder


@pytest.fixture
def engine(folder: Any) -> Engine:
    return make_engine(folder)


def text(folder: Any, tokens: list[int]) -> str:
    return str(Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens, skip_special_tokens=True))


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=2.0, seed=3, top_k=7)])
def test_output_matches_the_regex_in_mixed_batches(
    engine: Engine, folder: Any, params: SamplingParams
) -> None:
    free = Driver(execute_on(engine)).run([Sequence(PROMPT, 8)])[0].output
    for seed in range(2):
        engine.clear()
        sequences = [
            Sequence(PROMPT, 8, params, DIGITS),
            Sequence(PROMPT, 8),
            Sequence(PROMPT[:2], 8, params, DIGITS),
        ]
        constrained, unconstrained, other = Driver(execute_on(engine)).run(sequences, seed)
        assert unconstrained.output == free
        for sequence in (constrained, other):
            assert not sequence.errors
            assert re.fullmatch("[0-9]{3}x[ab]*", text(folder, sequence.output))


def test_slots_with_the_same_grammar_share_what_was_built_and_nothing_else(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = [SamplingParams(temperature=2.0, seed=seed, top_k=7) for seed in range(3)]
    sequences = [Sequence(PROMPT, 12, params, DIGITS) for params in drawn]
    alone = [Driver(execute_on(make_engine(folder))).run([sequence])[0].output for sequence in sequences]
    assert len({tuple(output) for output in alone}) == 3
    engine, built = make_engine(folder), []
    compile_ = Matchers._compile

    def counted(matchers: Matchers, grammar: Grammar) -> Any:
        built.append(grammar)
        return compile_(matchers, grammar)

    monkeypatch.setattr(Matchers, "_compile", counted)
    engine.slots.grammars = Grammars(
        folder / "tokenizer.json", 301, engine.model.facts.eos_token_ids, GrammarThreads(num_threads=1)
    )
    together = Driver(execute_on(engine)).run([Sequence(PROMPT, 12, params, DIGITS) for params in drawn])
    assert [sequence.output for sequence in together] == alone
    assert built == [DIGITS]


def test_json_schema_ends_with_the_end_of_sequence(engine: Engine, folder: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [7]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammar = Grammar("json_schema", json.dumps(schema))
    sequence = Driver(execute_on(engine)).run([Sequence(PROMPT, 30, SamplingParams(), grammar)])[0]
    assert 2 in sequence.output
    assert json.loads(text(folder, sequence.output[: sequence.output.index(2)])) == {"n": 7}


def test_replay_restores_the_state_of_the_grammar(engine: Engine) -> None:
    whole = Driver(execute_on(engine)).run([Sequence(PROMPT, 8, SamplingParams(), DIGITS)])[0].output
    engine.clear()
    replayed = Sequence(PROMPT, 8, SamplingParams(), DIGITS, output=whole[:3])
    assert Driver(execute_on(engine)).run([replayed])[0].output == whole


@pytest.mark.parametrize(
    "grammar", [Grammar("regex", "(("), Grammar("json_schema", "{"), Grammar("unknown", "x")]
)
def test_a_grammar_that_cannot_be_built_fails_its_slot_alone(engine: Engine, grammar: Grammar) -> None:
    bad, good = Sequence(PROMPT, 4, SamplingParams(), grammar), Sequence(PROMPT, 4)
    Driver(execute_on(engine)).run([bad, good])
    assert [error.code for error in bad.errors] == [ErrorCode.GRAMMAR]
    assert len(good.output) == 4


def test_nothing_left_to_choose_is_an_error(engine: Engine) -> None:
    everything_but_x = tuple(token for token in range(300))
    params = SamplingParams(min_new_tokens=5, suppressed_ids=everything_but_x)
    sequence = Driver(execute_on(engine)).run([Sequence(PROMPT, 4, params, DIGITS)])[0]
    assert [error.code for error in sequence.errors] == [ErrorCode.GRAMMAR]
    assert "allows no token" in sequence.errors[0].message


class HeldThreads(GrammarThreads):
    """Threads whose jobs wait until they are let go, one for each call of `let_go`."""

    def __init__(self) -> None:
        super().__init__(num_threads=2)
        self.gate = threading.Semaphore(0)
        self.jobs: list[Job] = []

    def start(self, job: Job, kind: Kind) -> Job:
        work = job.work

        def held(apart: LowPriority | None) -> str | Kind:
            self.gate.acquire()
            return work(apart)

        job.work = held
        self.jobs.append(job)
        return super().start(job, kind)

    def let_go(self) -> None:
        """Let the job that was submitted last end."""
        self.gate.release()
        self.jobs[-1].done.result(timeout=60)


@pytest.fixture
def held(engine: Engine, folder: Any) -> HeldThreads:
    threads = HeldThreads()
    facts = engine.model.facts
    engine.slots.grammars = Grammars(
        folder / "tokenizer.json", facts.vocab_size, facts.eos_token_ids, threads
    )
    return threads


def test_a_slot_whose_mask_is_late_sits_out_steps_and_gets_the_same_tokens(
    engine: Engine, folder: Any, held: HeldThreads
) -> None:
    usual, free = Driver(execute_on(make_engine(folder))).run(
        [Sequence(PROMPT, 4, SamplingParams(), DIGITS), Sequence(PROMPT, 12)]
    )
    outcomes: list[Any] = []

    def execute(plan: Plan) -> Any:
        if len(outcomes) % 3 == 2:
            held.let_go()
        outcomes.append(engine.launch(plan).resolve())
        return outcomes[-1]

    late, other = Driver(execute).run([Sequence(PROMPT, 4, SamplingParams(), DIGITS), Sequence(PROMPT, 12)])
    assert not late.errors
    assert (late.output, other.output) == (usual.output, free.output)
    assert [outcome.late_slots for outcome in outcomes[:6]] == [[0], [0], [], [0], [0], []]
    assert [outcome.sampled_slots for outcome in outcomes[:3]] == [[1], [1], [0, 1]]


def test_a_span_that_counts_on_the_token_of_a_late_slot_is_late_too(
    engine: Engine, held: HeldThreads
) -> None:
    admit = Admit(0, PROMPT, len(PROMPT), [0, 1], SamplingParams(), DIGITS)
    late = engine.launch(Plan(1, 1, admitted=[admit], spans=[Span(0, 0, 4)])).resolve()
    ahead = engine.launch(Plan(1, 2, spans=[Span(0, 4, 1)])).resolve()
    assert [outcome.late_slots for outcome in (late, ahead)] == [[0], [0]]
    assert not late.errors
    assert not ahead.errors
    held.let_go()
    again = engine.launch(Plan(1, 3, spans=[Span(0, 3, 1)])).resolve()
    assert (again.sampled_slots, again.late_slots) == ([0], [])
    beyond = engine.launch(Plan(1, 4, spans=[Span(0, 6, 1)])).resolve()
    assert [error.code for error in beyond.errors] == [ErrorCode.INVALID]


def test_a_launch_waits_neither_for_a_mask_nor_for_the_token_before(
    engine: Engine, folder: Any, held: HeldThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of a GPU, whose model runs until somebody says that it has run."""
    usual = make_engine(folder)
    [expected] = Driver(execute_on(usual)).run([Sequence(PROMPT, 2, SamplingParams(), DIGITS)])
    engine.runs_ahead = True
    monkeypatch.setattr(StepClock, "is_running", lambda _clock: True)
    admit = Admit(0, PROMPT, len(PROMPT), [0, 1], SamplingParams(), DIGITS)
    first = engine.launch(Plan(1, 1, admitted=[admit], spans=[Span(0, 0, 4)]))
    assert not first.proceed(), "its mask is not there"
    held.let_go()
    assert first.proceed()
    second = engine.launch(Plan(1, 2, spans=[Span(0, 4, 1)]))
    assert not second.proceed(), "nobody was told the token of the first"
    assert first.resolve().sampled_ids == expected.output[:1]
    assert not second.proceed(), "its mask is not there"
    held.let_go()
    assert second.proceed()
    assert second.resolve().sampled_ids == expected.output[1:]


def test_a_token_is_told_to_the_grammar_it_was_chosen_under(engine: Engine) -> None:
    """The slot may have been given to another sequence while the step ran."""
    engine.runs_ahead = True
    admit = Admit(0, PROMPT, len(PROMPT), [0, 1], SamplingParams(), DIGITS)
    first = engine.launch(Plan(1, 1, admitted=[admit], spans=[Span(0, 0, 4)]))
    while not first.proceed(1.0):
        pass
    other = Admit(0, PROMPT, len(PROMPT), [2, 3], SamplingParams(), Grammar("regex", "[ab]+"))
    second = engine.launch(Plan(1, 2, retired=[0], admitted=[other], spans=[Span(0, 0, 4)]))
    first.resolve()
    assert not second.resolve().errors


def test_tokens_are_the_same_where_steps_run_ahead(folder: Any) -> None:
    outputs = []
    for runs_ahead in (False, True):
        engine = make_engine(folder)
        engine.runs_ahead = runs_ahead
        sequences = [Sequence(PROMPT, 8, SamplingParams(), DIGITS), Sequence(PROMPT, 8)]
        Driver(execute_on(engine)).run(sequences, seed=4)
        outputs.append([sequence.output for sequence in sequences])
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("limit", "said"), [("_MAX_TOKEN_S", "for one token"), ("_MAX_TOTAL_S", "so far")])
def test_a_grammar_that_takes_too_long_fails_its_slot_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    bad, good = Sequence(PROMPT, 4, SamplingParams(), DIGITS), Sequence(PROMPT, 4)
    monkeypatch.setattr(constrained_slot, limit, 1e-9)
    Driver(execute_on(engine)).run([bad, good])
    assert [error.code for error in bad.errors] == [ErrorCode.GRAMMAR]
    assert bad.errors[0].message.startswith("the grammar takes too long")
    assert said in bad.errors[0].message
    assert len(good.output) == 4


@pytest.mark.parametrize("state", [1, 2])
def test_what_a_clock_decides_holds_on_every_rank(engine: Engine, state: int) -> None:
    """This rank has its mask; another one's is late or failed."""
    others = chain(repeat((state,), 2), repeat((0,)))
    engine.group.gather_numbers = lambda *mine: [mine, next(others)]  # type: ignore[method-assign]
    sequence = Driver(execute_on(engine)).run([Sequence(PROMPT, 3, SamplingParams(), DIGITS)])[0]
    assert len(sequence.output) == (3 if state == 1 else 0)
    assert [error.code for error in sequence.errors] == ([] if state == 1 else [ErrorCode.GRAMMAR])


@pytest.mark.parametrize("kind", [Kind.MASK, Kind.BUILD])
def test_long_jobs_do_not_hold_others_up(kind: Kind) -> None:
    """Grammars that take long to build leave the threads to those that do not."""
    threads, gate = GrammarThreads(num_threads=2), threading.Event()

    def work(_apart: LowPriority | None) -> str:
        while not gate.is_set():
            pass
        return "done"

    held = [threads.start(Job(work), kind) for _ in range(3)]
    other = threads.start(Job(lambda _apart: ""), kind)
    while not other.done.done():
        threads.set_long_jobs_apart()
        time.sleep(0.001)
    assert [job.done.done() for job in held] == [False, False, False]
    gate.set()
    assert [job.done.result(timeout=60) for job in held] == ["done"] * 3


def test_a_slot_that_sits_out_leaves_the_others_to_the_fast_way(
    engine: Engine, held: HeldThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Admit(0, PROMPT, len(PROMPT), [0, 1], SamplingParams(), DIGITS)
    other = Admit(1, PROMPT, len(PROMPT), [2, 3], SamplingParams())
    engine.launch(Plan(1, 1, admitted=[late, other], spans=[Span(0, 0, 4), Span(1, 0, 4)])).resolve()
    plain: list[list[int]] = []
    stage = engine.staging.stage_decodes

    def recorded(decodes: Decodes, *rest: Any) -> Step:
        plain.append(decodes.slots.tolist())
        return stage(decodes, *rest)

    monkeypatch.setattr(engine.staging, "stage_decodes", recorded)
    outcome = engine.launch(Plan(1, 2, spans=[Span(0, 3, 1), Span(1, 4, 1)])).resolve()
    assert (outcome.late_slots, outcome.sampled_slots, plain) == ([0], [1], [[1]])
    held.let_go()
    outcome = engine.launch(Plan(1, 3, spans=[Span(0, 3, 1), Span(1, 5, 1)])).resolve()
    assert (outcome.late_slots, outcome.sampled_slots, plain) == ([], [0, 1], [[1]])
    outcome = engine.launch(Plan(1, 4, spans=[Span(0, 4, 1), Span(1, 6, 1)])).resolve()
    assert plain == [[1], [0, 1]], "one that is late no more is no burden to the others"


def test_errors_are_in_words_for_clients() -> None:
    for error in (
        "parser error: Too many items (limit 50000; mask); try avoiding single-byte lexemes\n<non-verbose/>",
        "Current row has 4001 items; max is 4000; consider making your grammar left-recursive<non-verbose/>",
        "stop: ParserTooComplex",
    ):
        assert readable(error).startswith("too much of it is possible at one point")
    assert readable("NoExtensionBias") == "the output cannot go on"
    assert readable("lexer:\n  bad <non-verbose/>") == "lexer: bad"
