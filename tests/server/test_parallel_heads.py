"""Drafts by heads of P-EAGLE: all in one pass, those that the formulas of its training give; tokens as without them."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_model import counting_model, parallel_head
from driver import execute_on, make_engine
from open_spans import (
    EVERYTHING,
    MAX_DRAFTS,
    MAX_LEN,
    NUM_BLOCKS,
    NUM_COMPARED,
    SIZES,
    Told,
    admit,
    check_same,
    drafting,
    generate,
    play,
    prompt,
)
from parallel_oracle import MASK_TOKEN, SIZE, Tensors, guesses, guesses_in_turn, levels, noise, saved_noise
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.head_drafter import LONGEST_FIRST, HeadDrafter
from penstock_server.engine.parallel_drafter import ParallelDrafter
from penstock_server.engine.plan import Admit, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.token_tree import TokenTree
from penstock_server.engine.tree_growth import product_tree
from safetensors.torch import load_file, save_file
from test_grammar_drafts import patiently
from test_grammar_drafts import play as play_constrained
from test_trees import ways_of
from thread_ranks import engines, execute_on_all

RIGHT = SamplingParams(temperature=0.9, seed=4)
# The facts of a head, and the tensors that each needs.
FACTS: dict[str, Tensors] = {
    "": {},
    "fc_norm": {f"fc_norm.{number}.weight": torch.rand(SIZE) for number in range(3)},
    "norm_before_fc": {"input_norm.weight": torch.rand(3 * SIZE)},
    "norm_before_residual": {},
    "has_window": {},
}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_noise(tmp_path_factory.mktemp("noise") / "head", noise())


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It says its last token again."""
    return counting_model(
        saved_model, tmp_path_factory.mktemp("repeating") / "model", distance=0, head_dim=16
    )


@pytest.fixture(scope="module")
def right(model: Path) -> Path:
    return parallel_head(model, model.with_name("right"))


def drafts_of(engine: Engine, number: int, as_tree: bool = False) -> tuple[int, ...]:
    """The drafts for the first slot; afterwards, the drafter's state is as if nobody had asked."""
    drafter = engine.drafter
    assert isinstance(drafter, HeadDrafter)
    before = {slot: list(kept) for slot, kept in drafter._kept._runs.items()}
    draft = drafter.draft_trees if as_tree else drafter.draft
    with torch.inference_mode():
        found: tuple[int, ...] = draft([], {0: number})[0]
    drafter._kept._runs = before
    return found


# With a head size of 18, the model's steps run op by op.
@pytest.mark.parametrize("options", [{}, {"head_dim": 16}], ids=["free", "recorded"])
@pytest.mark.parametrize("name", FACTS)
def test_drafts_are_those_of_the_formulas(
    saved_model: Callable[..., Any], tmp_path: Path, options: dict[str, Any], name: str
) -> None:
    tensors = {**noise(num_layers=1 if name == "fc_norm" else 2), **FACTS[name]}
    facts = {name: True} if name else {}
    saved = saved_model(**options)
    engine = drafting(saved.folder, saved_noise(tmp_path / "head", tensors, **facts))
    assert isinstance(engine.drafter, ParallelDrafter)
    check_drafts(engine, lambda known, number: guesses(saved.oracle, tensors, known, number, **facts))


@pytest.mark.parametrize("options", [{}, {"head_dim": 16}], ids=["free", "recorded"])
def test_a_head_that_guesses_in_turn_may_have_several_layers_too(
    saved_model: Callable[..., Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    tensors, saved = noise(), saved_model(**options)
    head = saved_noise(tmp_path / "head", tensors, speculators_model_type="eagle3")
    engine = drafting(saved.folder, head)
    assert not isinstance(engine.drafter, ParallelDrafter)
    check_drafts(engine, lambda known, number: guesses_in_turn(saved.oracle, tensors, known, number))


def check_drafts(engine: Engine, expected: Callable[[list[int], int], list[int]]) -> None:
    """Drafts behind a prompt that is longer than a pass with drafts, and one that is not, whole and in chunks; and then
    behind those drafts."""
    tokens = [5, *range(200, 228)]
    assert isinstance(engine.drafter, HeadDrafter)
    assert len(tokens) > LONGEST_FIRST
    admitted = [Admit(0, tokens, len(tokens), list(range(NUM_BLOCKS)), SamplingParams())]
    for chunk, longest in product((len(tokens), 6), {LONGEST_FIRST, engine.drafter._longest}):
        engine.drafter._longest = longest
        engine.clear()
        execute, known = execute_on(engine), list(tokens)
        for start in range(0, len(tokens), chunk):
            span = Span(0, start, min(chunk, len(tokens) - start))
            known += execute(Plan(1, 1, admitted=[] if start else admitted, spans=[span])).sampled_ids
        for number in (1, 3, MAX_DRAFTS):
            assert drafts_of(engine, number) == tuple(expected(known, number))
            outcome = execute(Plan(1, 2, spans=[Span(0, len(known) - 1, 1)], open_drafts={0: number}))
            assert outcome.num_drafted == {0: number}
            known += outcome.sampled_ids


def test_a_tree_has_the_likeliest_guesses_of_one_pass(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    """No deeper than what the head was trained for, and of as many tokens as were asked for."""
    branches, depth, size = 3, 3, 9
    tensors, saved = noise(), saved_model(head_dim=16)
    head = saved_noise(tmp_path / "head", tensors, max_drafts=depth)
    engine = drafting(saved.folder, head, draft_branches=branches)
    tokens = [5, *range(200, 214)]
    admitted = [Admit(0, tokens, len(tokens), list(range(NUM_BLOCKS)), SamplingParams())]
    execute = execute_on(engine)
    known = [*tokens, *execute(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, len(tokens))])).sampled_ids]
    for _ in range(3):
        drafted = drafts_of(engine, size, as_tree=True)
        expected = product_tree(levels(saved.oracle, tensors, known, depth, branches), size)
        assert isinstance(drafted, TokenTree)
        assert isinstance(expected, TokenTree)
        assert max(drafted.depths) <= depth
        assert sorted(ways_of(drafted)) == sorted(ways_of(expected))
        outcome = execute(Plan(1, 2, spans=[Span(0, len(known) - 1, 1)], open_drafts={0: size}))
        assert outcome.num_drafted == {0: size}
        known += outcome.sampled_ids


def test_trees_change_nothing(saved_model: Callable[..., Any], head: Path) -> None:
    engine = drafting(saved_model(head_dim=16).folder, head, draft_branches=2)
    params = list(EVERYTHING.values())
    got = play(engine, params, 2 * MAX_DRAFTS)
    check_same(got, play(engine, params, None))
    assert sum(it.num_drafted for it in got) > 0


def test_slots_that_share_a_pass_draft_as_alone(saved_model: Callable[..., Any], head: Path) -> None:
    """In a recorded call, in a graph and op by op, and each as many as it may."""
    engine = drafting(saved_model(head_dim=16).folder, head)
    params = [SamplingParams(), RIGHT, SamplingParams(temperature=1.1, seed=3, top_k=40)]

    def drafts(slots: list[int]) -> dict[int, tuple[int, ...]]:
        engine.clear()
        admitted = [admit(slot, params[slot]) for slot in slots]
        spans = [Span(it.slot, 0, it.prompt_len) for it in admitted]
        execute_on(engine)(Plan(1, 1, admitted=admitted, spans=spans))
        with torch.inference_mode():
            return dict(engine.drafter.draft([], {slot: 1 + slot for slot in slots}))

    recorded = drafts([0, 1, 2])
    assert [len(recorded[slot]) for slot in range(3)] == [1, 2, 3]
    for slot in range(3):
        assert drafts([slot]) == {slot: recorded[slot]}
    drafter = engine.drafter
    assert isinstance(drafter, ParallelDrafter)
    assert drafter.graphs is not None
    drafter._recorded = None
    # Rows of a slot are one span in a step on a CPU, and spans of their own in a graph on a GPU.
    for joins in (True, False):
        drafter.graphs._replays.clear()
        drafter.graphs.joins = joins
        assert drafts([0, 1, 2]) == recorded
    drafter.graphs = None
    assert drafts([0, 1, 2]) == recorded


def test_noise_changes_nothing_and_is_hardly_ever_right(saved_model: Callable[..., Any], head: Path) -> None:
    engine, params = drafting(saved_model(head_dim=16).folder, head), list(EVERYTHING.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    drafted, accepted = sum(it.num_drafted for it in got), sum(len(it.ids) - it.num_steps for it in got)
    assert drafted > 0
    assert accepted < drafted / 5


def test_a_right_head_is_always_right(model: Path, right: Path) -> None:
    engine, params = drafting(model, right), list({**EVERYTHING, "drawn": RIGHT}.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    for it in got[:2]:
        assert it.ids[:NUM_COMPARED] == [it.ids[0]] * NUM_COMPARED
        assert it.num_drafted == MAX_DRAFTS * (it.num_steps - 1)
        assert len(it.ids) == it.num_drafted + it.num_steps


def test_chunks_shared_blocks_and_resumed_sequences_draft(model: Path, right: Path) -> None:
    execute, blocks = execute_on(drafting(model, right)), list(range(NUM_BLOCKS))
    plain = execute_on(make_engine(model, **SIZES))
    first = generate(execute, Told(), 0, prompt(0), 0, 8, blocks, chunk=2)
    expected = generate(plain, Told(), 0, prompt(0), 0, 23, blocks, max_drafts=None)
    assert first.ids == expected.ids[: len(first.ids)]
    assert first.num_steps == 1 + 2
    # In its blocks another one begins, whose last position the head lacks; stand-ins of the first lie behind them.
    tokens = prompt(0) + first.ids
    start = (len(tokens) - 1) // 4 * 4
    shared, own = blocks[: start // 4], list(range(20, 30 - start // 4))
    again = generate(execute, Told(), 1, tokens, start, 10, shared + own)
    assert first.ids + again.ids == expected.ids[: len(first.ids + again.ids)]
    assert again.num_steps == 1 + 2


def test_what_was_not_read_costs_drafts_for_a_step(model: Path, right: Path) -> None:
    execute = execute_on(drafting(model, right))
    told = generate(execute, Told(), 0, prompt(0), 0, 4, list(range(NUM_BLOCKS)), max_drafts=None)
    for num_drafted in (0, MAX_DRAFTS, MAX_DRAFTS):
        outcome = execute(Plan(1, 3, spans=[Span(0, MAX_LEN - 1, 1)], open_drafts={0: MAX_DRAFTS}))
        told.add(outcome, 0)
        assert outcome.num_drafted.get(0, 0) == num_drafted
    assert told.ids == [told.ids[0]] * (4 + 1 + 1 + 2 * (1 + MAX_DRAFTS) - 1)


def test_no_more_is_drafted_than_the_head_was_trained_for(
    saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = saved_model(head_dim=16).folder
    for most, number in ((2, 2), (9, MAX_DRAFTS)):
        engine = drafting(folder, saved_noise(tmp_path / str(most), noise(), max_drafts=most))
        execute = execute_on(engine)
        execute(Plan(1, 1, admitted=[admit(0, SamplingParams())], spans=[Span(0, 0, 6)]))
        outcome = execute(Plan(1, 2, spans=[Span(0, 6, 1)], open_drafts={0: MAX_DRAFTS}))
        assert outcome.num_drafted == {0: number}


def test_grammars_go_along(model: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that a grammar forces are drafted, and a guess fits the guesses before it."""
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
    assert all(it.num_drafted > 0 for it in got)
    assert got[2].num_steps < expected[2].num_steps


@pytest.mark.parametrize(("kind", "branches"), [("right", 1), ("head", 1), ("head", 3)])
def test_all_ranks_draft_the_same(
    model: Path, kind: str, branches: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = execute_on(make_engine(model, max_sequence_len=MAX_LEN))
    blocks = list(range(NUM_BLOCKS))
    expected = generate(plain, Told(), 0, prompt(0), 0, 16, blocks, max_drafts=None)
    options = {
        "max_sequence_len": MAX_LEN,
        "draft_model_path": request.getfixturevalue(kind),
        "draft_branches": branches,
        "is_poisoned": True,
    }
    with engines(model, 2, monkeypatch, **options) as ranks:
        told = generate(execute_on_all(ranks), Told(), 0, prompt(0), 0, 16, blocks, chunk=3)
    assert told.ids[:16] == expected.ids[:16]
    assert (told.num_steps == 4) == (kind == "right")


def test_the_form_without_a_kind_is_read(saved_model: Callable[..., Any], head: Path, tmp_path: Path) -> None:
    """A head renamed to the other form drafts the same, whatever the key of its mask token is called."""
    raw = json.loads((head / "config.json").read_text())
    layers = raw.pop("transformer_layer_config")
    names = ("speculators_model_type", "speculators_config", "mask_token_id")
    outer = {key: raw[key] for key in raw if key not in names}
    weights = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in load_file(head / "model.safetensors").items()
    }
    weights["mask_hidden"] = weights["mask_hidden"].view(1, -1)
    folder = saved_model(head_dim=16).folder
    drafted = []
    for name in ("mask_token_id", "pard_token", "ptd_token_id"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**outer, **layers, name: MASK_TOKEN}))
        save_file(weights, tmp_path / name / "model.safetensors")
        drafted.append(after_prompt(drafting(folder, tmp_path / name)))
    assert drafted == [after_prompt(drafting(folder, head))] * 3


def after_prompt(engine: Engine) -> tuple[int, ...]:
    execute_on(engine)(Plan(1, 1, admitted=[admit(0, SamplingParams())], spans=[Span(0, 0, 6)]))
    return drafts_of(engine, MAX_DRAFTS)


def test_what_cannot_draft_is_refused_by_name(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder, tensors = saved_model(head_dim=16).folder, noise()
    without = {name: tensor for name, tensor in tensors.items() if name != "mask_hidden"}
    shallow = {name: tensor for name, tensor in tensors.items() if "layers.1" not in name}
    plain = {name: tensor for name, tensor in shallow.items() if name != "layers.0.hidden_norm.weight"}
    method = {"proposal_type": "greedy", "speculative_tokens": 0}
    refused: dict[str, Path] = {
        "mask_token_id is missing": saved_noise(tmp_path / "1", tensors, mask_token_id=None),
        "mask_token_id is 301; expected one of the model's 301 tokens": saved_noise(
            tmp_path / "2", tensors, mask_token_id=301
        ),
        "tensor mask_hidden is in no safetensors file": saved_noise(tmp_path / "3", without),
        r"mask_hidden is \[1, 1, 72\]; expected a tensor of 216 numbers": saved_noise(
            tmp_path / "4", {**tensors, "mask_hidden": torch.zeros(1, 1, SIZE)}
        ),
        "layers.1.* is in no safetensors file": saved_noise(
            tmp_path / "5",
            shallow,
            transformer_layer_config={
                **json.loads((tmp_path / "1" / "config.json").read_text())["transformer_layer_config"],
                "num_hidden_layers": 2,
            },
        ),
        "guesses several tokens at once, .* layers.0.hidden_norm.weight is in no file": saved_noise(
            tmp_path / "6", plain
        ),
        "speculative_tokens is 0; expected a whole number from 1": saved_noise(
            tmp_path / "7", tensors, speculators_config={"proposal_methods": [method]}
        ),
        "its head has 200 tokens, and it is to know 100": saved_noise(
            tmp_path / "8", tensors, draft_vocab_size=100
        ),
    }
    for message, head in refused.items():
        with pytest.raises(StartError, match=f"--draft-model: (?s:.)*({message})"):
            make_engine(folder, draft_model_path=head)
