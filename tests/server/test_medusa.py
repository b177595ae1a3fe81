"""Drafts by heads of MEDUSA: the tokens are those without them, right heads are always right, noise hardly ever."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_model import NUM_HEADS, counting_model, medusa_heads, noisy_heads
from driver import execute_on, make_engine
from open_spans import (
    EVERYTHING,
    MAX_DRAFTS,
    MAX_LEN,
    NUM_BLOCKS,
    NUM_COMPARED,
    SIZES,
    Told,
    check_same,
    drafting,
    generate,
    play,
    prompt,
)
from penstock_server.base.errors import StartError
from penstock_server.engine.plan import Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from safetensors.torch import load_file, save_file
from test_grammar_drafts import patiently
from test_grammar_drafts import play as play_constrained
from thread_ranks import engines, execute_on_all

RIGHT = SamplingParams(temperature=0.9, seed=4)


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with head sizes that the ops in C take, so that its steps are recorded."""
    return counting_model(saved_model, tmp_path_factory.mktemp("counting") / "model", head_dim=16)


@pytest.fixture(scope="module")
def right(model: Path) -> Path:
    return medusa_heads(model, model.with_name("right"), num_layers=2, says=2)


# With a head size of 18, steps run op by op.
@pytest.mark.parametrize(
    ("options", "params"),
    [({}, ["drawn", "top logprobs", "drawn under penalties"]), ({"head_dim": 16}, [*EVERYTHING])],
    ids=["free", "recorded"],
)
def test_noise_changes_nothing_and_is_hardly_ever_right(
    saved_model: Callable[..., Any], tmp_path: Path, options: dict[str, Any], params: list[str]
) -> None:
    heads = noisy_heads(72, tmp_path / "heads")
    engine, played = drafting(saved_model(**options).folder, heads), [EVERYTHING[name] for name in params]
    expected = play(engine, played, None)
    got = play(engine, played, MAX_DRAFTS)
    check_same(got, expected)
    drafted, accepted = sum(it.num_drafted for it in got), sum(len(it.ids) - it.num_steps for it in got)
    assert drafted > 0
    assert accepted < drafted / 5


def test_right_heads_are_always_right(model: Path, right: Path) -> None:
    engine, params = drafting(model, right), list({**EVERYTHING, "drawn": RIGHT}.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    for it in got[:2]:
        assert it.ids[:NUM_COMPARED] == [*range(it.ids[0], it.ids[0] + NUM_COMPARED)]
        assert it.num_drafted == NUM_HEADS * (it.num_steps - 1)
        assert len(it.ids) == it.num_drafted + it.num_steps
    # With more asked for than there are heads, each drafts one.
    (many,) = play(engine, [SamplingParams()], 6)
    assert many.num_drafted == NUM_HEADS * (many.num_steps - 1)


def test_chunks_shared_blocks_and_resumed_sequences_draft(model: Path, right: Path) -> None:
    execute, blocks = execute_on(drafting(model, right)), list(range(NUM_BLOCKS))
    plain = execute_on(make_engine(model, **SIZES))
    first = generate(execute, Told(), 0, prompt(0), 0, 8, blocks, chunk=2)
    expected = generate(plain, Told(), 0, prompt(0), 0, 23, blocks, max_drafts=None)
    assert first.ids == expected.ids[: len(first.ids)]
    assert first.num_steps == 1 + 2
    # In its blocks another one begins; the hidden states of what is in them are not needed.
    tokens = prompt(0) + first.ids
    start = (len(tokens) - 1) // 4 * 4
    shared, own = blocks[: start // 4], list(range(20, 30 - start // 4))
    again = generate(execute, Told(), 1, tokens, start, 10, shared + own)
    assert first.ids + again.ids == expected.ids[: len(first.ids + again.ids)]
    assert again.num_steps == 1 + 2


def test_a_step_without_open_spans_is_not_read(model: Path, right: Path) -> None:
    engine = drafting(model, right)
    execute = execute_on(engine)
    told = generate(execute, Told(), 0, prompt(0), 0, 4, list(range(NUM_BLOCKS)), max_drafts=None)
    for num_drafted in (0, MAX_DRAFTS):
        plan = Plan(1, 3, spans=[Span(0, MAX_LEN - 1, 1)], open_drafts={0: MAX_DRAFTS})
        outcome = execute(plan)
        told.add(outcome, 0)
        assert outcome.num_drafted.get(0, 0) == num_drafted
    assert told.ids == [*range(told.ids[0], told.ids[0] + 4 + 1 + 1 + MAX_DRAFTS)]


def test_grammars_and_adapters_go_along(model: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patiently(monkeypatch)
    cases = [
        (SamplingParams(), Grammar("regex", "[ab]{30}")),
        (SamplingParams(temperature=1.3, seed=4), Grammar("regex", "([0-9]{3}x[ab]+y){9}")),
        (RIGHT, None),
    ]
    execute = execute_on(drafting(model, right))
    expected = play_constrained(execute, None, cases)
    execute(Plan(1, 9, retired=[0, 1, 2]))
    got = play_constrained(execute, MAX_DRAFTS, cases)
    assert [it.ids for it in got] == [it.ids for it in expected]
    assert got[2].num_steps < expected[2].num_steps


@pytest.mark.parametrize("num_stages", [1, 2])
def test_all_ranks_draft_the_same(
    model: Path, right: Path, num_stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = execute_on(make_engine(model, max_sequence_len=MAX_LEN))
    blocks = list(range(NUM_BLOCKS))
    expected = generate(plain, Told(), 0, prompt(0), 0, 16, blocks, max_drafts=None)
    options = {"max_sequence_len": MAX_LEN, "draft_model_path": right, "is_poisoned": True}
    with engines(model, 2 * num_stages, monkeypatch, num_stages=num_stages, **options) as ranks:
        told = generate(execute_on_all(ranks), Told(), 0, prompt(0), 0, 16, blocks, chunk=3)
    assert told.ids == expected.ids
    assert told.num_steps == 4


def test_what_cannot_draft_is_refused_by_name(
    saved_model: Callable[..., Any], model: Path, right: Path, tmp_path: Path
) -> None:
    narrow = noisy_heads(36, tmp_path / "narrow")
    padded = medusa_heads(model, tmp_path / "padded")
    weights = load_file(padded / "medusa_lm_head.safetensors")
    weights["0.1.weight"] = torch.zeros(320, 72)
    save_file(weights, padded / "medusa_lm_head.safetensors")
    few = medusa_heads(model, tmp_path / "few", says=NUM_HEADS + 1)
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "config.json").write_text(json.dumps({"medusa_num_heads": 2}))
    (pickled / "medusa_lm_head.pt").write_bytes(b"")
    refused = {
        "36 numbers, those of the model have 72": narrow,
        "know 320 tokens, the model 301": padded,
        "has 4 heads, but medusa_num_heads in config.json is 5": few,
        "medusa_lm_head.pt holds pickled weights": pickled,
        "has no medusa_lm_head.safetensors": empty,
    }
    for message, heads in refused.items():
        with pytest.raises(StartError, match=f"--draft-model: (?s:.)*({message})"):
            make_engine(model, draft_model_path=heads)
    with pytest.raises(
        StartError, match="is for --speculation medusa, and --speculation draft was asked for"
    ):
        make_engine(model, draft_model_path=right, drafter="draft")
