"""A thousand random mixtures for most drafters, of whose drafts some are right: tokens are those without drafts.

Chunks of prompts, shared prefixes, preemption, crashes, grammars, adapters, and all that a sequence may ask for; then
the same on quantized weights and a cache of 8 bits, and on two shards.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from adapter_folder import tensors, write
from counting_model import (
    counting_model,
    counting_model_with_mtp,
    eagle_head,
    half_right_model,
    medusa_heads,
    parallel_head,
)
from drafting_driver import DraftingDriver
from driver import Driver, Execute, Sequence, execute_on, make_engine
from open_spans import EVERYTHING, SIZES
from other_vocabulary import renumbered
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Grammar
from penstock_server.engine.sampling_params import SamplingParams
from test_grammar_drafts import patiently
from thread_ranks import engines, execute_on_all

# Drafters that share most of their code with another drafter get few traces.
NUM_TRACES, NUM_TREES, NUM_FEW, NUM_MORE, NUM_NEW = 1000, 300, 100, 40, 5
DRAFTERS = (
    *("ngram", "suffix", "draft", "draft-renumbered", "medusa", "eagle", "parallel", "mtp"),
    *("medusa-trees", "eagle-trees", "mtp-trees"),
)
# A text of few words, so that what it says comes again.
FEW = SamplingParams(temperature=9.0, seed=8, allowed_mask=bytes([0, 0b111] + [0] * 36))
ASKED = [
    *EVERYTHING.values(),
    FEW,
    SamplingParams(temperature=0.9, seed=4),
    SamplingParams(temperature=9.0, seed=6, num_top_logprobs=2),
]
# For trees, which are drafted in steps in which nobody asks for more than a draw.
ASKED_FOR_TREES = [
    EVERYTHING["greedy"],
    *(SamplingParams(temperature=0.3 * seed, seed=seed) for seed in range(9)),
    EVERYTHING["drawn"],
    EVERYTHING["penalties"],
    EVERYTHING["top logprobs"],
]
GRAMMARS = [Grammar("regex", "[ab]{30}"), Grammar("regex", "([0-9]{3}x[ab]+y){9}")]
# Poisoned, so that what a drafter did not compute makes its drafts wrong; that takes time.
QUANTIZED: dict[str, Any] = {"quantize": "int8", "kv_cache_dtype": "fp8", "is_poisoned": True}


class Drafting(NamedTuple):
    """A model of one layer, so that a thousand mixtures take seconds, and options of an engine that drafts for it."""

    model: Path
    options: dict[str, Any]
    most_traces: int = NUM_TRACES
    has_trees: bool = False


@pytest.fixture(scope="module", params=DRAFTERS)
def drafting(
    request: pytest.FixtureRequest, saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Drafting:
    kind, _, form = str(request.param).partition("-")
    folder = tmp_path_factory.mktemp("counting")
    is_tree = form == "trees"
    trees = {"draft_branches": 3} if is_tree else {}
    if kind == "mtp":
        model = counting_model_with_mtp(saved_model, folder / "model", is_unsure=is_tree, head_dim=16)
        return Drafting(model, {"drafter": "mtp", **trees}, NUM_TREES if is_tree else NUM_TRACES, is_tree)
    distance = 0 if kind == "parallel" else 1
    model = counting_model(saved_model, folder / "model", distance, head_dim=16, num_hidden_layers=1)
    if kind == "parallel":
        head = parallel_head(model, folder / "draft", is_right=False)
        return Drafting(model, {"draft_model_path": head}, NUM_FEW)
    if kind in ("ngram", "suffix"):
        return Drafting(model, {"drafter": kind})
    if kind == "draft":
        draft = half_right_model(model, folder / "draft")
        if form == "renumbered":
            draft = renumbered(draft, folder / "renumbered", num_lacking=40)
    else:
        heads = medusa_heads if kind == "medusa" else eagle_head
        draft = heads(model, folder / "draft", is_right=False, is_unsure=is_tree)
    most = NUM_TREES if is_tree else NUM_TRACES
    return Drafting(model, {"draft_model_path": draft, **trees}, most, is_tree)


def candidates(adapter_id: str, has_trees: bool) -> list[Sequence]:
    """Sequences that a mixture is made of; some begin alike."""
    found = []
    for number, params in enumerate(ASKED_FOR_TREES if has_trees else ASKED):
        tokens = [5 + number % 3, 200, 201, 202, 203, *range(204, 204 + number % 4)]
        is_plain = has_trees and number < 11
        grammar = GRAMMARS[number % 2] if number % 5 == 0 and not is_plain else None
        uses = adapter_id if number % 4 == 3 and not is_plain else ""
        params = replace(params, banned_ids=(), banned_lens=(), allowed_mask=b"") if grammar else params
        found.append(Sequence(tokens, NUM_NEW, params, grammar, uses))
    # The tokens that followed there follow here, too, except for those after the match.
    found.append(Sequence([5, 200, 201, 202, 200, 201], NUM_NEW))
    return found


def fresh(sequence: Sequence) -> Sequence:
    return replace(sequence, output=[], logprobs=[], tops=[], blocks=[], left_blocks=[], errors=[])


def alone(engine: Engine, sequences: list[Sequence]) -> list[list[int]]:
    """The output of each sequence without drafts, computed alone."""
    found = []
    for sequence in sequences:
        (told,) = Driver(execute_on(engine)).run([fresh(sequence)])
        assert not told.errors
        found.append(told.output)
    return found


def play(
    execute: Execute,
    lose: Callable[[], None],
    sequences: list[Sequence],
    expected: list[list[int]],
    count: int,
) -> DraftingDriver:
    driver = DraftingDriver(execute, lose, SIZES["num_slots"], SIZES["num_blocks"])
    donor: Sequence | None = None
    for seed in range(count):
        rng = random.Random(seed)
        numbers = [rng.randrange(len(sequences)) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        mixture = [fresh(sequences[number]) for number in numbers]
        if donor is not None and not donor.adapter_id and not mixture[0].adapter_id:
            share(driver, donor, mixture[0])
        driver.play(mixture, rng)
        for number, sequence in zip(numbers, mixture, strict=True):
            assert not sequence.errors, (seed, sequence)
            assert sequence.output[:NUM_NEW] == expected[number], (seed, sequence)
        # Beside others its blocks may have been given out again.
        donor = mixture[0] if len(mixture) == 1 else None
    return driver


def share(driver: Driver, donor: Sequence, sequence: Sequence) -> None:
    """Like `Driver.share_prefix`, for as many tokens as both begin with."""
    pairs = zip(donor.tokens, sequence.tokens[:-1], strict=False)
    same = next(
        (place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), len(sequence.tokens) - 1
    )
    same = min(same, len(donor.tokens) - 1) // driver.block_size
    sequence.blocks, sequence.computed = donor.left_blocks[:same], same * driver.block_size
    driver.free_blocks = [block for block in driver.free_blocks if block not in sequence.blocks]


def started(engine: Engine, folder: Path) -> str:
    """The engine drafts as many as it may, and has an adapter, whose id this is."""
    engine.drafter = unlimited(engine.drafter)
    return engine.slots.adapters.load(folder, "", "test").adapter_id


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {name: weight for name, weight in tensors().items() if "layers.0.mlp.down" in name}
    return write(tmp_path_factory.mktemp("adapter"), weights, target_modules=["down_proj"])


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch)


@pytest.mark.parametrize(
    ("options", "count"), [({}, NUM_TRACES), (QUANTIZED, NUM_MORE)], ids=["", "quantized"]
)
def test_tokens_are_those_without_drafts(
    drafting: Drafting, adapter: Path, options: dict[str, Any], count: int
) -> None:
    engine = make_engine(drafting.model, max_adapters=1, **SIZES, **options, **drafting.options)
    sequences = candidates(started(engine, adapter), drafting.has_trees)
    plain = make_engine(drafting.model, max_adapters=1, **SIZES, **options)
    started(plain, adapter)
    count = min(count, drafting.most_traces)
    driver = play(execute_on(engine), engine.clear, sequences, alone(plain, sequences), count)
    assert 0 < driver.num_right < driver.num_drafted


def test_two_shards_draft_as_one(drafting: Drafting, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = make_engine(drafting.model, max_adapters=1, **SIZES)
    sequences = candidates(started(plain, adapter), drafting.has_trees)
    expected = alone(plain, sequences)
    options = {"is_poisoned": True, "max_adapters": 1, **SIZES, **drafting.options}
    with engines(drafting.model, 2, monkeypatch, **options) as ranks:
        for rank in ranks:
            started(rank, adapter)

        def lose() -> None:
            for rank in ranks:
                rank.clear()

        driver = play(execute_on_all(ranks), lose, sequences, expected, NUM_MORE)
    assert 0 < driver.num_right < driver.num_drafted
