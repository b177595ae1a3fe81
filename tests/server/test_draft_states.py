"""Drafts for models with states: tokens are those without drafts, in every mixture, and a snapshot is never that of a
wrong draft.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from adapter_folder import tensors, write
from counting_model import counting_model, eagle_head, medusa_heads, parallel_head
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from open_spans import EVERYTHING, MAX_DRAFTS, MAX_LEN, NUM_BLOCKS, SIZES, check_same, drafting, play
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load import sizes
from penstock_server.network.states import States, state_bytes
from states_driver import NUM_SNAPSHOTS, Foreseeing, StatesDriver
from test_decode_graphs import DELTA
from test_draft_traces import ASKED, FEW, GRAMMARS, alone, fresh, started
from test_grammar_drafts import patiently
from thread_ranks import engines, execute_on_all

# One of each kind of layer that the ops in C take: a step is the same however its tokens are divided.
KINDS: dict[str, dict[str, Any]] = {
    "delta rule": DELTA,
    "row delta rule": CASES["kimi_linear-in-c"],
    "Mamba-2": CASES["mamba2"],
    "Mamba": CASES["mamba"],
    "convolution": {**CASES["lfm2"], "hidden_size": 64},
}
NUM_TRACES, NUM_MORE, NUM_NEW = 200, 12, 8
# Fewer rows than some steps would draft.
STATES: dict[str, Any] = {"num_draft_states": 7, "num_snapshots": NUM_SNAPSHOTS, "is_poisoned": True, **SIZES}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch)


def candidates(adapter_id: str = "") -> list[Sequence]:
    found = []
    for number, params in enumerate(ASKED):
        tokens = [5 + number % 3, 200, 201, 202, 203, *range(204, 204 + number % 4)]
        grammar = GRAMMARS[number % 2] if number % 5 == 0 else None
        params = replace(params, banned_ids=(), banned_lens=(), allowed_mask=b"") if grammar else params
        found.append(Sequence(tokens, NUM_NEW, params, grammar, adapter_id if number % 4 == 3 else ""))
    return found


def foreseeing(engine: Engine, sequences: list[Sequence], expected: list[list[int]]) -> None:
    texts = [it.prompt + output for it, output in zip(sequences, expected, strict=True)]
    engine.drafter = Foreseeing(engine, texts)


def mix(
    driver: StatesDriver, sequences: list[Sequence], expected: list[list[int]], count: int
) -> StatesDriver:
    for seed in range(count):
        rng = random.Random(seed)
        numbers = [rng.randrange(len(sequences)) for _ in range(rng.choice([1, 1, 2, 3]))]
        mixture = [fresh(sequences[number]) for number in numbers]
        driver.play(mixture, rng)
        for number, sequence in zip(numbers, mixture, strict=True):
            assert not sequence.errors, (seed, sequence)
            assert sequence.output[:NUM_NEW] == expected[number][:NUM_NEW], (seed, sequence)
    return driver


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_without_drafts(kind: str, saved_model: Callable[..., Any]) -> None:
    folder, sequences = saved_model(**KINDS[kind]).folder, candidates()
    expected = alone(make_engine(folder, **SIZES), sequences)
    engine = make_engine(folder, **STATES)
    foreseeing(engine, sequences, expected)
    driver = mix(StatesDriver(execute_on(engine), engine.clear), sequences, expected, NUM_TRACES)
    assert 0 < driver.num_right < driver.num_drafted
    assert driver.num_resumed > driver.num_behind_drafts > 0


def test_adapters_and_quantized_weights_change_nothing(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = saved_model(**{**DELTA, "hidden_size": 72}).folder
    weights = {name: weight for name, weight in tensors().items() if "mlp.down" in name}
    adapter = write(tmp_path / "adapter", weights, target_modules=["down_proj"])
    options: dict[str, Any] = {"max_adapters": 1, "quantize": "int8", "kv_cache_dtype": "fp8"}
    plain, engine = (make_engine(folder, **sizes, **options) for sizes in (SIZES, STATES))
    sequences = candidates(started(plain, adapter))
    expected = alone(plain, sequences)
    started(engine, adapter)
    foreseeing(engine, sequences, expected)
    mix(StatesDriver(execute_on(engine), engine.clear), sequences, expected, NUM_MORE)


@pytest.mark.parametrize("kind", KINDS)
def test_two_shards_draft_as_one(
    kind: str, saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sequences = saved_model(**KINDS[kind]).folder, candidates()
    with engines(folder, 2, monkeypatch, **STATES) as ranks:
        expected = [run_alone(ranks, sequence) for sequence in sequences]
        for rank in ranks:
            foreseeing(rank, sequences, expected)

        def lose() -> None:
            for rank in ranks:
                rank.clear()

        mix(StatesDriver(execute_on_all(ranks), lose), sequences, expected, NUM_MORE)


def run_alone(ranks: list[Engine], sequence: Sequence) -> list[int]:
    """The tokens that shards choose without drafts: their sums are rounded otherwise than those of one."""
    (told,) = Driver(execute_on_all(ranks)).run([fresh(sequence)])
    return told.output


@pytest.fixture(params=["recorded", "free"])
def folder(request: pytest.FixtureRequest, saved_model: Callable[..., Any]) -> Path:
    """A model with head sizes that the ops in C take, or with others: its steps run op by op."""
    options = DELTA if request.param == "recorded" else CASES["qwen3_5_text"]
    found: Path = saved_model(**options).folder
    return found


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft", "medusa", "eagle", "parallel"])
def test_every_drafter_drafts_for_such_models(
    drafter: str, folder: Path, saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"num_draft_states": 40}
    params = [*list(EVERYTHING.values())[1:], FEW]
    expected = play(make_engine(folder, **SIZES), params, None)
    if drafter in ("ngram", "suffix"):
        engine = make_engine(folder, drafter=drafter, is_poisoned=True, **SIZES, **options)
        engine.drafter = unlimited(engine.drafter)
    else:
        engine = drafting(folder, head_or_model(drafter, saved_model, tmp_path), **options)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    assert sum(it.num_drafted for it in got) > 0


def head_or_model(drafter: str, saved_model: Callable[..., Any], tmp_path: Path) -> Path:
    """A head or draft model that was made for another model of the same sizes: its drafts are nearly always wrong."""
    other = counting_model(saved_model, tmp_path / "other", hidden_size=64, head_dim=16)
    if drafter == "draft":
        return other
    heads: dict[str, Callable[[Path, Path], Path]] = {
        "medusa": medusa_heads,
        "eagle": eagle_head,
        "parallel": parallel_head,
    }
    return heads[drafter](other, tmp_path / "head")


def test_no_more_is_drafted_than_states_are_kept(saved_model: Callable[..., Any]) -> None:
    folder = saved_model(**DELTA).folder
    for num_states in (0, 1, 3):
        engine = make_engine(folder, num_draft_states=num_states, **SIZES)
        sequences = [Sequence([5, 6, 7], 9)]
        if num_states:
            foreseeing(engine, sequences, alone(engine, sequences))
        tokens, blocks = [5, 6, 7], list(range(NUM_BLOCKS))
        admitted = [Admit(0, tokens, 3, blocks, SamplingParams())]
        engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, 3)])).resolve()
        outcome = engine.launch(Plan(1, 2, spans=[Span(0, 3, 1)], open_drafts={0: 4})).resolve()
        assert outcome.errors == []
        assert outcome.num_drafted == ({0: num_states} if num_states else {})
        assert ("recurrent_drafts" in engine.description.abilities) == (num_states > 0)


def test_states_behind_drafts_are_counted_before_the_cache(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, budget = saved_model(**DELTA).folder, 2**22
    monkeypatch.setattr(sizes, "budget_bytes", lambda _num_shards: budget)
    options = {"max_sequence_len": MAX_LEN, "num_blocks": None, "num_slots": 4, "num_snapshots": 3}
    engine = make_engine(folder, num_draft_states=5, **options)
    states = engine.cache.states
    assert isinstance(states, States)
    each = state_bytes(engine.model.state_shape, engine.model.dtype)
    assert states.conv.nbytes + states.matrices.nbytes == (4 + 1 + 5 + 3) * each
    monkeypatch.setattr(sizes, "budget_bytes", lambda _num_shards: 10 * each)
    with pytest.raises(
        StartError,
        match=r"states of 4 slots and behind 5 drafts take .* --max-batch-size, --speculate, --speculate-max",
    ):
        make_engine(folder, num_draft_states=5, **options)
