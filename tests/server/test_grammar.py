"""Constrained slots: what they get matches the grammar, survives replay, and harms nobody."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.base.errors import ErrorCode
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Grammar
from penstock_server.engine.sampling_params import SamplingParams
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
