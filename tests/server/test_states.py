"""Layers with states: slots used again, prompts in any pieces, what is refused, and what the memory plan counts."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import tiny_model
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load import sizes
from penstock_server.network.kv_cache import block_bytes
from penstock_server.network.states import state_bytes

# One of each kind; the last has no attention at all.
NAMES = ("qwen3_5_text", "falcon_h1", "lfm2", "mamba2")
NUM_NEW = 3
Saved = tuple[Path, Any]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Saved]:
    """The folder of a model, and the model itself; made once."""
    made: dict[str, Saved] = {}

    def make(name: str) -> Saved:
        if name not in made:
            folder, options = tmp_path_factory.mktemp(name), dict(CASES[name])
            made[name] = folder, tiny_model.save(folder, tiny_model.TinyModel(options.pop("family"), options))
        return made[name]

    return make


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 301) for _ in range(length)]


def check(sequence: Sequence, model: Any) -> None:
    """Tokens and log probabilities are those of transformers."""
    tokens, logprobs = oracle.greedy(model, sequence.prompt, sequence.max_new)
    assert (sequence.errors, sequence.output) == ([], tokens)
    assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_slot_that_is_used_again_begins_anew(name: str, saved: Callable[[str], Saved]) -> None:
    folder, model = saved(name)
    engine = make_engine(folder, max_sequence_len=100, is_poisoned=True)
    driver = Driver(execute_on(engine), num_slots=1)
    # One is cancelled inside its prompt, one ends; the next ones have one token, fewer than the convolution, and more.
    driver.send(Plan(0, 0, admitted=[admit(prompt(40, 1))], spans=[Span(0, 0, 23)]))
    driver.send(Plan(0, 0, retired=[0]))
    for length in (20, 1, 2):
        check(driver.run([Sequence(prompt(length, length), NUM_NEW)])[0], model)


def admit(tokens: list[int]) -> Admit:
    return Admit(0, tokens, len(tokens), list(range(20)), SamplingParams())


@pytest.mark.parametrize("pieces", [(1, 1, 1, 30), (3, 64, 1, 2), (63, 1, 6)])
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_may_come_in_any_pieces(
    name: str, pieces: tuple[int, ...], saved: Callable[[str], Saved]
) -> None:
    folder, model = saved(name)
    engine = make_engine(folder, max_sequence_len=100, is_poisoned=True)
    tokens, start = prompt(sum(pieces), 2), 0
    found: dict[int, float] = {}
    params = SamplingParams(prompt_logprobs=True)
    for step, length in enumerate(pieces, start=1):
        admitted = [Admit(5, tokens, len(tokens), list(range(25)), params)] if step == 1 else []
        outcome = engine.launch(Plan(1, step, admitted=admitted, spans=[Span(5, start, length)])).resolve()
        start += length
        for rows in outcome.prompt_logprobs:
            found |= dict(enumerate(rows.logprobs, rows.start))
    assert [found[position] for position in range(1, len(tokens))] == pytest.approx(
        oracle.prompt_logprobs(model, tokens), abs=1e-3
    )
    assert outcome.sampled_ids == oracle.greedy(model, tokens, 1)[0]


def test_spans_that_do_not_follow_each_other_are_refused(saved: Callable[[str], Saved]) -> None:
    engine = make_engine(saved("lfm2")[0], max_sequence_len=100)

    def errors(*plans: Plan) -> list[str]:
        engine.clear()
        return [error.message for plan in plans for error in engine.launch(plan).resolve().errors]

    tokens = prompt(12)
    reused = Plan(1, 1, admitted=[admit(tokens)], spans=[Span(0, 8, 4)])
    assert errors(reused) == ["span 8..12 does not follow the slot's state, which is that of 0 tokens"]
    begun = Plan(1, 1, admitted=[admit(tokens)], spans=[Span(0, 0, 12)])
    again = "span 11..12 does not follow the slot's state, which is that of 12 tokens"
    assert errors(begun, Plan(1, 2, spans=[Span(0, 11, 1)])) == [again]
    assert errors(begun, Plan(1, 2, spans=[Span(0, 12, 1)]), Plan(1, 3, spans=[Span(0, 13, 1)])) == []


def test_states_are_counted_before_the_cache(
    saved: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, (budget, num_slots) = saved("qwen3_5_text")[0], (2**22, 4)
    monkeypatch.setattr(sizes, "budget_bytes", lambda _world_size: budget)
    engine = make_engine(folder, max_sequence_len=100, num_blocks=None, num_slots=num_slots)
    model, limits = engine.model, engine.description.limits
    taken = state_bytes(model.state_shape, num_slots, model.dtype)
    states = engine.cache.states
    assert states is not None
    assert taken == states.conv.nbytes + states.matrices.nbytes > 0
    each = block_bytes(model.cache_shape, 4, model.dtype)
    assert limits.num_blocks == min((budget - taken) // each, num_slots * limits.max_blocks)
    monkeypatch.setattr(sizes, "budget_bytes", lambda _world_size: taken)
    with pytest.raises(StartError, match=r"the states of 4 slots take .* lower --max-batch-size"):
        make_engine(folder, max_sequence_len=100, num_blocks=None, num_slots=num_slots)


def test_what_is_not_possible_is_refused(saved: Callable[[str], Saved]) -> None:
    with pytest.raises(StartError, match=r"--batch-invariant: .* recurrent layers"):
        make_engine(saved("lfm2")[0], batch_invariant=True)


def test_the_router_is_told(saved: Callable[[str], Saved]) -> None:
    engine: Engine = make_engine(saved("lfm2")[0])
    assert "recurrent" in engine.description.abilities
    assert engine.slots.grammars.is_patient, "a state cannot go back by a token"
