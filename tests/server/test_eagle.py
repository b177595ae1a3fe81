"""Drafts by heads of EAGLE: the tokens are those without them, the drafts those that the training code makes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from counting_model import counting_model, eagle_head
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
from penstock_server.base.errors import StartError
from penstock_server.engine import head_drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.head_drafter import LONGEST_FIRST, HeadDrafter
from penstock_server.engine.plan import Admit, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.step import Step
from safetensors.torch import load_file, save_file
from test_grammar_drafts import patiently
from test_grammar_drafts import play as play_constrained
from thread_ranks import engines, execute_on_all

from demo import eagle

SHAPE = eagle.Shape(size=72, num_heads=4, num_kv_heads=2, head_dim=16, intermediate=40, vocab=200)
LAYERS = (1, 2, 3)
RIGHT = SamplingParams(temperature=0.9, seed=4)


def random_head(to: Path) -> tuple[Path, eagle.Head]:
    """A head of the third version that knows 200 of the 301 tokens, and the same as it is trained."""
    torch.manual_seed(8)
    head = eagle.Head(SHAPE)
    for name, parameter in head.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        parameter.data = parameter.data.bfloat16().float()
    vocabulary = torch.arange(50, 50 + SHAPE.vocab)
    eagle.ship(head, vocabulary, 301, to)
    return changed(to, eagle_aux_hidden_state_layer_ids=list(LAYERS)), head


def changed(head: Path, **config: Any) -> Path:
    """Other values in the config.json of a head."""
    raw = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**raw, **config}))
    return head


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_head(tmp_path_factory.mktemp("noise") / "head")[0]


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with head sizes that the ops in C take, so that its steps are recorded."""
    return counting_model(saved_model, tmp_path_factory.mktemp("counting") / "model", head_dim=16)


@pytest.fixture(scope="module")
def right(model: Path) -> Path:
    return eagle_head(model, model.with_name("right"))


def drafts_of(model: Any, head: eagle.Head, tokens: list[int]) -> list[int]:
    """The tokens that the training code guesses after these tokens."""
    return [ids[0] for ids in likeliest_of(model, head, tokens, MAX_DRAFTS)]


def likeliest_of(
    model: Any,
    head: eagle.Head,
    tokens: list[int],
    num_passes: int,
    way: tuple[int, ...] = (),
    count: int = 1,
) -> list[list[int]]:
    """The likeliest tokens of each pass of the training code behind these, which goes on with those of `way` first."""
    ids, found = torch.tensor([tokens]), []
    visible = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()[None, None]
    states: dict[int, torch.Tensor] = {}
    modules = (*model.model.layers, model.model.norm)
    hooks = [
        modules[number].register_forward_pre_hook(
            lambda _m, args, number=number: states.update({number: args[0]})
        )
        for number in LAYERS
    ]
    with torch.no_grad():
        model(ids)
        for hook in hooks:
            hook.remove()
        hidden = head.fc(torch.cat([states[number] for number in LAYERS], dim=-1))
        seen, followers = eagle.Seen(SHAPE, visible), ids.roll(-1, dims=1)
        for number in range(num_passes):
            hidden = head(model.model.embed_tokens(followers), hidden, seen)
            best = head.lm_head(head.norm(hidden[0, -2])).topk(count).indices
            found.append((50 + best).tolist())
            followers = torch.full_like(ids, way[number] if number < len(way) else found[-1][0])
    return found


# With a head size of 18, the model's steps run op by op.
@pytest.mark.parametrize("options", [{}, {"head_dim": 16}], ids=["free", "recorded"])
def test_drafts_are_those_of_the_training_code(
    saved_model: Callable[..., Any], tmp_path: Path, options: dict[str, Any]
) -> None:
    folder, head = random_head(tmp_path / "head")
    saved = saved_model(**options)
    engine = drafting(saved.folder, folder)
    tokens = [5, *range(200, 214)]
    admitted = [Admit(0, tokens, len(tokens), list(range(NUM_BLOCKS)), SamplingParams())]
    for chunk in (len(tokens), 4):
        engine.clear()
        execute, known = execute_on(engine), list(tokens)
        for start in range(0, len(tokens), chunk):
            span = Span(0, start, min(chunk, len(tokens) - start))
            known += execute(Plan(1, 1, admitted=[] if start else admitted, spans=[span])).sampled_ids
        for _ in range(3):
            assert isinstance(engine.drafter, HeadDrafter)
            expected = drafts_of(saved.oracle, head, known)
            before = {slot: list(kept) for slot, kept in engine.drafter._kept._runs.items()}
            with torch.inference_mode():
                assert engine.drafter.draft([], {0: MAX_DRAFTS})[0] == tuple(expected)
            engine.drafter._kept._runs = before
            outcome = execute(Plan(1, 2, spans=[Span(0, len(known) - 1, 1)], open_drafts={0: MAX_DRAFTS}))
            assert outcome.num_drafted == {0: MAX_DRAFTS}
            known += outcome.sampled_ids


def test_noise_changes_nothing_and_is_hardly_ever_right(saved_model: Callable[..., Any], noise: Path) -> None:
    engine, params = drafting(saved_model(head_dim=16).folder, noise), list(EVERYTHING.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    drafted, accepted = sum(it.num_drafted for it in got), sum(len(it.ids) - it.num_steps for it in got)
    assert drafted > 0
    assert accepted < drafted / 5


def test_a_right_head_is_always_right(model: Path, right: Path) -> None:
    engine, params = drafting(model, right), list({**EVERYTHING, "drawn": RIGHT}.values())
    passes = engine.drafter.graphs if isinstance(engine.drafter, HeadDrafter) else None
    assert passes is not None
    states = passes.states(1)
    assert states is not None
    states.fill_(torch.nan)  # what no pass has left must not be read
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    for it in got[:2]:
        assert it.ids[:NUM_COMPARED] == [*range(it.ids[0], it.ids[0] + NUM_COMPARED)]
        assert it.num_drafted == MAX_DRAFTS * (it.num_steps - 1)
        assert len(it.ids) == it.num_drafted + it.num_steps


def test_chunks_shared_blocks_and_resumed_sequences_draft(model: Path, right: Path) -> None:
    execute, blocks = execute_on(drafting(model, right)), list(range(NUM_BLOCKS))
    plain = execute_on(make_engine(model, **SIZES))
    first = generate(execute, Told(), 0, prompt(0), 0, 8, blocks, chunk=2)
    expected = generate(plain, Told(), 0, prompt(0), 0, 23, blocks, max_drafts=None)
    assert first.ids == expected.ids[: len(first.ids)]
    assert first.num_steps == 1 + 2
    # In its blocks another one begins, and in blocks of which the head computed nothing.
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
    assert told.ids == [*range(told.ids[0], told.ids[0] + 4 + 1 + 1 + 2 * (1 + MAX_DRAFTS) - 1)]


def test_what_is_kept_of_prompts_has_a_limit(
    model: Path, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While drafts do not pay nobody asks the head, which computes with what it keeps when it is asked."""
    engine = drafting(model, right)
    head = engine.drafter
    assert isinstance(head, HeadDrafter)
    generate(execute_on(engine), Told(), 0, prompt(0), 0, 1, list(range(NUM_BLOCKS)), max_drafts=None)
    kept = head._kept.num_bytes
    assert kept >= len(prompt(0)) * 4
    monkeypatch.setattr(head_drafter, "_MOST_KEPT", kept)
    assert not head.is_behind
    monkeypatch.setattr(head_drafter, "_MOST_KEPT", kept - 1)
    assert head.is_behind
    engine.clear()
    assert not head.is_behind


def test_a_prompt_that_was_kept_is_computed_in_parts_of_a_step(
    model: Path, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drafting(model, right, max_step_tokens=6)
    head = engine.drafter
    assert isinstance(head, HeadDrafter)
    plain = execute_on(make_engine(model, **SIZES))
    tokens, blocks = [*range(100, 130)], list(range(NUM_BLOCKS))
    expected = generate(plain, Told(), 0, tokens, 0, 6, blocks, max_drafts=None)
    lens, staged = list[int](), head._staged

    def measured(spans: list[Span], num_rows: int | None) -> Step:
        lens.append(sum(span.length for span in spans))
        return staged(spans, num_rows)

    monkeypatch.setattr(head, "_staged", measured)
    told = generate(execute_on(engine), Told(), 0, tokens, 0, 6, blocks, chunk=6)
    assert told.ids[: len(expected.ids)] == expected.ids
    assert told.num_steps == 1 + 1, "it was told all of it"
    assert max(lens) <= 6
    assert sum(lens) == len(tokens) - 1


def test_what_could_not_be_computed_is_not_tried_again(
    model: Path, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = drafting(model, right)
    head = engine.drafter
    assert isinstance(head, HeadDrafter)
    head._longest = LONGEST_FIRST
    tokens, blocks = [*range(100, 130)], list(range(NUM_BLOCKS))

    def fail(*_given: Any) -> None:
        raise RuntimeError("no memory")

    generate(execute_on(engine), Told(), 0, tokens, 0, 1, blocks, max_drafts=None)
    with monkeypatch.context() as patched:
        patched.setattr(head, "_hidden", fail)
        with pytest.raises(RuntimeError):
            head.draft([], {0: 2})
    assert not head._kept.slots()


def test_who_shares_a_prefix_finds_what_was_computed_meanwhile(
    model: Path, right: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them was told its prompt, and computes it after the second has begun."""
    engine = drafting(model, right)
    head, execute = engine.drafter, execute_on(engine)
    assert isinstance(head, HeadDrafter)
    tokens, shared = [*range(100, 130)], list(range(7))
    second = Admit(1, tokens, len(tokens), [*shared, 50, 51, 52], SamplingParams())
    with monkeypatch.context() as resting:
        resting.setattr(head, "draft", lambda _spans, _wanted: {})
        generate(execute, Told(), 0, tokens, 0, 1, [*shared, 40, 41, 42], max_drafts=None)
        execute(Plan(1, 1, admitted=[second], spans=[Span(1, 28, 2)]))
    assert head.plane.filled(1) == 0
    told = Told(num_steps=1)
    for slot in (0, 1):
        told.add(execute(Plan(1, 2, spans=[Span(slot, MAX_LEN - 1, 1)], open_drafts={slot: 2})), slot)
    assert told.num_drafted == 4
    assert head.plane.filled(1) >= 28
    keys = head.cache.layers[0].key[:7].flatten(1)
    assert bool((keys != 0).any(dim=1).all()), "the second made none of it zero"


def test_slots_may_draft_different_numbers(model: Path, right: Path) -> None:
    engine = drafting(model, right)
    execute, told = execute_on(engine), [Told(), Told(), Told()]
    admitted = [admit(slot, SamplingParams()) for slot in range(3)]
    outcome = execute(
        Plan(1, 1, admitted=admitted, spans=[Span(it.slot, 0, it.prompt_len) for it in admitted])
    )
    for drafts in ({0: 1, 1: 4, 2: 2}, {0: 3, 2: 4}, {0: 4, 1: 4, 2: 1}):
        for slot, it in enumerate(told):
            it.add(outcome, slot)
        spans = [Span(slot, MAX_LEN - 1, 1) for slot in drafts]
        outcome = execute(Plan(1, 2, spans=spans, open_drafts=drafts))
        assert outcome.num_drafted == drafts
        assert len(outcome.sampled_ids) == sum(drafts.values()) + len(drafts)
    assert told[1].ids == [*range(told[1].ids[0], told[1].ids[0] + len(told[1].ids))]


def test_grammars_go_along(model: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("num_stages", [1, 2, 4])
@pytest.mark.parametrize("kind", ["right", "noise"])
def test_all_ranks_draft_the_same(
    model: Path, kind: str, num_stages: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = execute_on(make_engine(model, max_sequence_len=MAX_LEN))
    blocks = list(range(NUM_BLOCKS))
    expected = generate(plain, Told(), 0, prompt(0), 0, 16, blocks, max_drafts=None)
    head: Path = request.getfixturevalue(kind)
    options = {"max_sequence_len": MAX_LEN, "draft_model_path": head, "is_poisoned": True}
    with engines(model, max(2, num_stages), monkeypatch, num_stages=num_stages, **options) as ranks:
        told = generate(execute_on_all(ranks), Told(), 0, prompt(0), 0, 16, blocks, chunk=3)
    assert told.ids[:16] == expected.ids[:16]
    assert (told.num_steps == 4) == (kind == "right")


def test_the_form_of_speculators_is_read(
    saved_model: Callable[..., Any], noise: Path, tmp_path: Path
) -> None:
    """A head with its tensors renamed drafts the same, and additional settings of its config.json are used."""
    raw = json.loads((noise / "config.json").read_text())
    weights = load_file(noise / "model.safetensors")
    weights = {name.replace("midlayer.", "layers.0."): weight for name, weight in weights.items()}
    inner = {
        key: raw[key] for key in raw if key not in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids")
    }
    outer = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": SHAPE.vocab,
        "eagle_aux_hidden_state_layer_ids": list(LAYERS),
        "transformer_layer_config": inner,
    }
    more = {
        "fc_norm": {f"fc_norm.{number}.weight": torch.rand(72) for number in range(3)},
        "norm_before_fc": {"input_norm.weight": torch.rand(216)},
        "norm_before_residual": {},
        "norm_output": {},
    }
    folder, drafted = saved_model(head_dim=16).folder, {}
    for name, added in {"": {}, **more}.items():
        to = tmp_path / (name or "plain")
        to.mkdir()
        (to / "config.json").write_text(json.dumps({**outer, **({name: True} if name else {})}))
        save_file({**weights, **added}, to / "model.safetensors")
        drafted[name] = drafts_after_prompt(drafting(folder, to))
    assert drafted[""] == drafts_after_prompt(drafting(folder, noise))
    assert len({*drafted.values()}) == len(drafted)
    both = changed(tmp_path / "fc_norm", norm_before_fc=True)
    with pytest.raises(StartError, match="norm_before_fc and fc_norm are both true"):
        make_engine(folder, draft_model_path=both)
    with pytest.raises(StartError, match="speculators_model_type is 'dflash'; supported: eagle3, peagle"):
        make_engine(folder, draft_model_path=changed(tmp_path / "plain", speculators_model_type="dflash"))


def drafts_after_prompt(engine: Engine) -> tuple[int, ...]:
    execute_on(engine)(Plan(1, 1, admitted=[admit(0, SamplingParams())], spans=[Span(0, 0, 6)]))
    with torch.inference_mode():
        return tuple(engine.drafter.draft([], {0: MAX_DRAFTS})[0])


def test_what_cannot_draft_is_refused_by_name(
    saved_model: Callable[..., Any], model: Path, right: Path, noise: Path, tmp_path: Path
) -> None:
    def copy(name: str, of: Path = noise, **config: Any) -> Path:
        to = tmp_path / name
        to.mkdir()
        (to / "config.json").write_text((of / "config.json").read_text())
        save_file(load_file(of / "model.safetensors"), to / "model.safetensors")
        return changed(to, **config)

    def with_tensor(name: str, tensor: torch.Tensor) -> Path:
        to = copy(name)
        save_file({**load_file(to / "model.safetensors"), name: tensor}, to / "model.safetensors")
        return to

    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text(json.dumps({"draft_vocab_size": 8}))
    (pickled / "pytorch_model.bin").write_bytes(b"")
    refused = {
        r"fc.weight has shape \[72, 216\], and for this model it would be \[36, 216\]": copy(
            "narrow", hidden_size=36
        ),
        "eagle_aux_hidden_state_layer_ids is .*; expected layers of the model, which has 3": copy(
            "layers", eagle_aux_hidden_state_layer_ids=[1, 2, 4]
        ),
        "d2t names tokens 150 to 349, 200 of 200 differ, and the model knows 301": with_tensor(
            "d2t", torch.full((SHAPE.vocab,), 150)
        ),
        "its head has 200 tokens, and it is to know 100": copy("vocabulary", draft_vocab_size=100),
        "the head has 2 layers, .* but layers.0.hidden_norm.weight is in no file": copy(
            "deep", of=right, num_hidden_layers=2
        ),
        "pytorch_model.bin holds pickled weights": pickled,
    }
    for message, head in refused.items():
        with pytest.raises(StartError, match=f"--draft-model: (?s:.)*({message})"):
            make_engine(model, draft_model_path=head)
    with pytest.raises(
        StartError, match="is for --speculation eagle, and --speculation medusa was asked for"
    ):
        make_engine(model, draft_model_path=right, drafter="medusa")
