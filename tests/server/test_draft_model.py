"""Drafts by a second model: the tokens are those without it, and one that is equal to the model is always right."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import execute_on, make_engine
from family_models import CASES, LATENT
from open_spans import (
    DRAWN,
    EVERYTHING,
    MAX_DRAFTS,
    MAX_LEN,
    NUM_BLOCKS,
    NUM_COMPARED,
    Told,
    check_same,
    drafting,
    generate,
    play,
    prompt,
)
from other_vocabulary import renumbered
from penstock_server.base.errors import StartError
from penstock_server.engine import model_drafter
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.model_drafter import ModelDrafter
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load import sizes
from safetensors.torch import load_file, save_file
from thread_ranks import engines, execute_on_all

OTHER = {
    "num_hidden_layers": 1,
    "hidden_size": 36,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 12,
}
BLOCK_SIZE = 4


# With head sizes that the ops in C take, the passes of the draft model are recordings.
@pytest.mark.parametrize(
    "options",
    [{}, {"head_dim": 16}, CASES["deepseek_v3"], {"family": "youtu", **LATENT}],
    ids=["free", "recorded", "latents", "other latents"],
)
def test_a_drafter_equal_to_the_model_is_always_right(
    saved_model: Callable[..., Any], options: dict[str, Any]
) -> None:
    folder = saved_model(**options).folder
    engine, params = drafting(folder, folder), list(EVERYTHING.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    for it in got:
        assert it.num_steps == 1 + -(-(NUM_COMPARED - 1) // (MAX_DRAFTS + 1))
        assert len(it.ids) == 1 + it.num_drafted + it.num_steps - 1


def test_a_drafter_of_noise_changes_nothing_and_is_hardly_ever_right(saved_model: Callable[..., Any]) -> None:
    params = list(EVERYTHING.values())
    engine = drafting(saved_model().folder, saved_model(**OTHER).folder)
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    num_drafted = sum(it.num_drafted for it in got)
    num_right = sum(len(it.ids) - it.num_steps for it in got)
    assert num_drafted > 0
    assert num_right < num_drafted / 10


def test_what_was_computed_without_drafts_is_made_up_for(saved_model: Callable[..., Any]) -> None:
    folder = saved_model().folder
    engine = drafting(folder, folder)
    execute, blocks = execute_on(engine), list(range(NUM_BLOCKS))
    told = generate(execute, Told(), 0, prompt(0), 0, 12, blocks, max_drafts=None, chunk=2)
    # In its blocks another one begins, of which the drafter has the prompt only.
    tokens = prompt(0) + told.ids
    start = (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
    shared = blocks[: start // BLOCK_SIZE]
    own = list(range(2 * NUM_BLOCKS, 3 * NUM_BLOCKS - len(shared)))
    # A slot that waits for its first span changes nothing.
    execute(Plan(1, 3, admitted=[Admit(2, prompt(2), len(prompt(2)), [40], DRAWN)]))
    got = generate(execute, Told(), 1, tokens, start, 15, shared + own)
    assert got.num_steps == 4
    assert got.num_drafted == 12
    # And again from its tokens so far, as after it was preempted.
    first = list(got.ids)
    generate(execute, got, 1, tokens + first[:4], start, 6, shared + own)
    assert got.ids[len(first) :] == first[4:10]
    assert got.num_steps == 6
    plain = make_engine(folder, max_sequence_len=MAX_LEN)
    expected = generate(execute_on(plain), Told(), 0, tokens, 0, 15, blocks, max_drafts=None)
    assert first[:15] == expected.ids


def test_a_slot_far_behind_catches_up_by_parts(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_drafter, "_MOST_CAUGHT_UP", 4)
    folder = saved_model().folder
    execute, blocks = execute_on(drafting(folder, folder)), list(range(NUM_BLOCKS))
    told = generate(execute, Told(), 0, prompt(0), 0, 11, blocks, max_drafts=None)
    for drafted in (0, 0, MAX_DRAFTS):
        outcome = execute(Plan(1, 3, spans=[Span(0, MAX_LEN - 1, 1)], open_drafts={0: MAX_DRAFTS}))
        told.add(outcome, 0)
        assert outcome.num_drafted.get(0, 0) == drafted
    assert len(told.ids) == 11 + 2 + MAX_DRAFTS + 1


@pytest.mark.parametrize(
    ("target", "options", "num_ranks", "num_stages"),
    [
        ({}, {}, 2, 1),
        ({}, OTHER, 2, 1),
        ({"head_dim": 16}, {"head_dim": 16}, 2, 1),
        ({"head_dim": 16}, {"head_dim": 16}, 2, 2),
        ({}, {"family": "youtu", **LATENT}, 2, 1),
        (CASES["deepseek_v3"], OTHER, 2, 1),
        ({}, OTHER, 4, 2),
    ],
    ids=["divided", "whole", "recorded", "two stages", "latents draft", "for latents", "two stages of two"],
)
def test_all_ranks_draft_the_same(
    saved_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    target: dict[str, Any],
    options: dict[str, Any],
    num_ranks: int,
    num_stages: int,
) -> None:
    folder, draft = saved_model(**target).folder, saved_model(**options).folder
    plain = execute_on(make_engine(folder, max_sequence_len=MAX_LEN))
    expected = generate(plain, Told(), 0, prompt(0), 0, 16, list(range(NUM_BLOCKS)), max_drafts=None)
    sizes = {"max_sequence_len": MAX_LEN, "draft_model_path": draft, "is_poisoned": True}
    with engines(folder, num_ranks, monkeypatch, num_stages=num_stages, **sizes) as ranks:
        told = generate(execute_on_all(ranks), Told(), 0, prompt(0), 0, 16, list(range(NUM_BLOCKS)), chunk=3)
    assert told.ids == expected.ids
    assert told.num_drafted > 0
    assert (told.num_steps == 4) == (draft == folder)


def test_behind_the_length_of_the_drafter_nothing_is_drafted(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = saved_model().folder
    short = changed(folder, tmp_path / "short", max_position_embeddings=10)
    engine = drafting(folder, short)
    expected = play(engine, [DRAWN], None)
    got = play(engine, [DRAWN], MAX_DRAFTS)
    check_same(got, expected)
    assert got[0].num_drafted == 10 - len(prompt(0))


@pytest.mark.parametrize("vocab_size", [280, 320])
def test_a_vocabulary_may_be_padded(saved_model: Callable[..., Any], tmp_path: Path, vocab_size: int) -> None:
    folder = saved_model().folder
    padded = changed(folder, tmp_path / "padded", vocab_size=vocab_size)
    weights = load_file(padded / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.zeros(vocab_size, weights[name].shape[1])
        count = min(len(rows), len(weights[name]))
        rows[:count] = weights[name][:count]
        weights[name] = rows
    save_file(weights, padded / "model.safetensors")
    engine = drafting(folder, padded)
    params = [DRAWN, SamplingParams(frequency_penalty=1.0)]
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    drafted, accepted = sum(it.num_drafted for it in got), sum(len(it.ids) - it.num_steps for it in got)
    assert 0 < accepted <= drafted
    # Zeros are of middling likelihood; what the shorter one lacks is drawn now and then.
    assert vocab_size < 301 or accepted > drafted // 2


@pytest.mark.parametrize("options", [{}, {"head_dim": 16}], ids=["free", "recorded"])
def test_a_vocabulary_may_be_another(
    saved_model: Callable[..., Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    folder, params = saved_model(**options).folder, list(EVERYTHING.values())
    engine = drafting(folder, renumbered(folder, tmp_path / "draft", num_more=5))
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    # It reads and says the tokens of the model, so it is the model.
    for it in got:
        assert it.num_steps == 1 + -(-(NUM_COMPARED - 1) // (MAX_DRAFTS + 1))


def test_tokens_that_the_drafter_lacks_are_not_drafted(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model().folder
    engine = drafting(folder, renumbered(folder, tmp_path / "draft", num_lacking=90))
    params = list(EVERYTHING.values())
    draft = engine.drafter.draft
    drafted: set[int] = set()

    def watched(*asked: Any) -> Any:
        found = draft(*asked)
        drafted.update(*found.values())
        return found

    monkeypatch.setattr(engine.drafter, "draft", watched)
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    assert len(drafted) > 50
    assert max(drafted) < 301 - 90
    assert 0 < sum(len(it.ids) - it.num_steps for it in got) < sum(it.num_drafted for it in got)


def test_both_planes_are_planned_together(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model().folder
    monkeypatch.setattr(sizes, "budget_bytes", lambda _size: 2_000_000)
    counts = [
        make_engine(folder, num_blocks=None, num_slots=128, draft_model_path=draft).slots.limits.num_blocks
        for draft in (None, folder)
    ]
    assert counts[1] == counts[0] // 2
    engine = make_engine(folder, num_blocks=None, num_slots=128, draft_model_path=folder)
    drafter = unlimited(engine.drafter)
    assert isinstance(drafter, ModelDrafter)
    assert drafter.cache.pools[0].shape == engine.cache.pools[0].shape


def test_what_cannot_draft_is_refused_by_name(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = saved_model().folder
    other = changed(folder, tmp_path / "other", vocab_size=302)
    (other / "tokenizer.json").unlink()
    strange = renumbered(folder, tmp_path / "strange", num_lacking=200)
    refused = {
        "nowhere": tmp_path / "nowhere",
        "302 tokens, that of the model 301": other,
        r"strange/tokenizer.json has 301 tokens, .* 301, and only 101 are in both": strange,
        "computed by the code of transformers": changed(folder, tmp_path / "biogpt", model_type="biogpt"),
        "keep a state": saved_model(**CASES["lfm2"]).folder,
    }
    for message, draft in refused.items():
        with pytest.raises(StartError, match=f"--draft-model: (?s:.)*({message})"):
            make_engine(folder, draft_model_path=draft)
    windowed = saved_model("mistral", sliding_window=8).folder
    with pytest.raises(StartError, match="behind its window of 8 tokens"):
        make_engine(windowed, draft_model_path=folder)


def changed(folder: Path, to: Path, **config: Any) -> Path:
    """A copy of a model folder with other values in its config.json."""
    shutil.copytree(folder, to)
    raw = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**raw, **config}))
    return to
