"""Drafts by the layer of multi-token prediction of a checkpoint: the tokens are those without it, the drafts those that
its formula gives, with a layer of transformers.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from driver import Sequence, engine_config, execute_on, make_engine, opened_both
from family_models import CASES
from open_spans import (
    EVERYTHING,
    MAX_DRAFTS,
    MAX_LEN,
    NUM_BLOCKS,
    SIZES,
    Told,
    check_same,
    generate,
    play,
    prompt,
)
from penstock_server.base.errors import StartError
from penstock_server.engine.engine import Engine
from penstock_server.engine.head_drafter import HeadDrafter
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from safetensors.torch import load_file, save_file
from states_driver import NUM_SNAPSHOTS, StatesDriver
from test_draft_states import mix
from test_draft_traces import alone
from thread_ranks import engines, execute_on_all

# In the first two it is one more layer; in the others, whose norms have weights around 0, it lies apart.
KINDS = ("deepseek_v3", "deepseek_v32", "glm4_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
NUM_LAYERS = 3
LAYER_TYPES = ["linear_attention", "full_attention", "linear_attention", "full_attention"]


class Made(NamedTuple):
    """A folder whose last layer became one of multi-token prediction, and the model of transformers from before."""

    folder: Path
    oracle: Any
    # The weights of that layer, without those of a decoder layer.
    own: dict[str, torch.Tensor]
    has_states: bool


@pytest.fixture(scope="module", params=KINDS)
def made(
    request: pytest.FixtureRequest, saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Made:
    return make(saved_model, tmp_path_factory.mktemp("mtp") / str(request.param), str(request.param))


def make(saved_model: Callable[..., Any], to: Path, kind: str) -> Made:
    has_states = kind.startswith("qwen")
    options = {"layer_types": LAYER_TYPES} if has_states else {}
    saved = saved_model(**{**CASES[kind], **options, "num_hidden_layers": NUM_LAYERS + 1})
    shutil.copytree(saved.folder, to)
    raw = json.loads((to / "config.json").read_text())
    size = raw["hidden_size"]
    changes = {"num_hidden_layers": NUM_LAYERS, "num_nextn_predict_layers": 1}
    for key in ("mlp_layer_types", "layer_types"):
        if raw.get(key):
            changes[key] = raw[key][:NUM_LAYERS]
    (to / "config.json").write_text(json.dumps({**raw, **changes}))
    torch.manual_seed(5)
    own = {
        "enorm": torch.rand(size) + 0.5,
        "hnorm": torch.rand(size) + 0.5,
        "eh_proj": torch.randn(size, 2 * size) / size**0.5,
        "shared_head.norm": torch.rand(size) + 0.5,
    }
    weights = load_file(to / "model.safetensors")
    named = {f"model.layers.{NUM_LAYERS}.{name}.weight": part for name, part in own.items()}
    weights = apart({**weights, **named}) if has_states else {**weights, **named}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return Made(to, saved.oracle, own, has_states)


def apart(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in the layout of Qwen3-Next."""
    layer = f"model.layers.{NUM_LAYERS}."
    named = {
        "enorm": "pre_fc_norm_embedding",
        "hnorm": "pre_fc_norm_hidden",
        "eh_proj": "fc",
        "shared_head.norm": "norm",
    }
    for theirs, name in named.items():
        part = weights.pop(f"{layer}{theirs}.weight")
        weights[f"mtp.{name}.weight"] = part if name == "fc" else part - 1
    return {name.replace(layer, "mtp.layers.0."): part for name, part in weights.items()}


def drafting(folder: Path, **options: Any) -> Engine:
    """A poisoned engine that drafts as many as it may."""
    sizes = {**SIZES, "num_draft_states": 40, **options}
    engine = make_engine(folder, drafter="mtp", is_poisoned=True, **sizes)
    engine.drafter = unlimited(engine.drafter)
    return engine


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@torch.no_grad()
def drafts_of(made: Made, tokens: list[int]) -> list[int]:
    """The tokens that the layer guesses after these tokens; each time, all positions are computed again."""
    model, own, eps = made.oracle.model, made.own, made.oracle.config.rms_norm_eps
    layer, known, given = model.layers[NUM_LAYERS], list(tokens), torch.empty(0)
    told: dict[str, Any] = {}
    for _ in range(MAX_DRAFTS):
        ids = torch.tensor([known])
        told.clear()
        hook = layer.register_forward_pre_hook(
            lambda _m, args, kwargs: told.update(x=args[0], kwargs=kwargs), with_kwargs=True
        )
        # One position less than there are tokens: each is computed with the token behind it.
        model(ids[:, :-1], use_cache=False)
        hook.remove()
        if not len(given):
            given = model.norm(told["x"])
        embedded = normed(model.embed_tokens(ids[:, 1:]), own["enorm"], eps)
        both = torch.cat((embedded, normed(given, own["hnorm"], eps)), dim=-1)
        found = layer(both @ own["eh_proj"].T, **told["kwargs"])
        found = found[0] if isinstance(found, tuple) else found
        last = normed(found[:, -1:], own["shared_head.norm"], eps)
        known.append(int(made.oracle.lm_head(last).argmax()))
        given = torch.cat((given, last), dim=1)
    return known[len(tokens) :]


def test_drafts_are_those_of_its_formula(made: Made) -> None:
    engine = drafting(made.folder)
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
            before = {slot: list(kept) for slot, kept in engine.drafter._kept._runs.items()}
            with torch.inference_mode():
                assert list(engine.drafter.draft([], {0: MAX_DRAFTS})[0]) == drafts_of(made, known)
            engine.drafter._kept._runs = before
            outcome = execute(Plan(1, 2, spans=[Span(0, len(known) - 1, 1)], open_drafts={0: MAX_DRAFTS}))
            assert outcome.num_drafted == {0: MAX_DRAFTS}
            known += outcome.sampled_ids


def test_the_tokens_are_those_without_drafts(made: Made) -> None:
    engine, params = drafting(made.folder), list(EVERYTHING.values())
    expected = play(engine, params, None)
    got = play(engine, params, MAX_DRAFTS)
    check_same(got, expected)
    assert sum(it.num_drafted for it in got) > 0


def test_shared_blocks_chunks_and_ranks_change_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = list(range(NUM_BLOCKS))
    plain = execute_on(make_engine(made.folder, **SIZES))
    expected = generate(plain, Told(), 0, prompt(0), 0, 20, blocks, max_drafts=None)
    execute = execute_on(drafting(made.folder))
    first = generate(execute, Told(), 0, prompt(0), 0, 8, blocks, chunk=2)
    assert first.ids == expected.ids[: len(first.ids)]
    tokens = prompt(0) + first.ids
    # Blocks of a model with states are shared up to a snapshot only.
    start = 0 if made.has_states else (len(tokens) - 1) // 4 * 4
    shared, own = blocks[: start // 4], list(range(20, 30 - start // 4))
    again = generate(execute, Told(), 1, tokens, start, 5, shared + own)
    assert (first.ids + again.ids)[:13] == expected.ids[:13]
    options = {
        "max_sequence_len": MAX_LEN,
        "drafter": "mtp",
        "is_poisoned": True,
        "num_draft_states": 40,
    }
    for of_group in ({}, {"expert_parallel": True}, {"num_stages": 2}):
        with engines(made.folder, 2, monkeypatch, **of_group, **options) as ranks:
            told = generate(execute_on_all(ranks), Told(), 0, prompt(0), 0, 16, blocks, chunk=3)
        assert told.ids[:16] == expected.ids[:16]
        assert told.num_drafted > 0


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_snapshots_and_preemption_change_nothing(
    kind: str, saved_model: Callable[..., Any], tmp_path: Path
) -> None:
    folder = make(saved_model, tmp_path / kind, kind).folder
    sequences = [Sequence(prompt(slot), 12, params) for slot, params in enumerate(EVERYTHING.values())]
    expected = alone(make_engine(folder, **SIZES), sequences)
    engine = drafting(folder, num_snapshots=NUM_SNAPSHOTS)
    driver = StatesDriver(execute_on(engine), engine.clear)
    mix(driver, sequences, expected, 25)
    assert driver.num_drafted > 0 < driver.num_behind_drafts


@pytest.mark.parametrize("made", ["deepseek_v3", "glm4_moe"], indirect=True)
def test_what_has_no_such_layer_is_refused_by_name(
    saved_model: Callable[..., Any], made: Made, tmp_path: Path
) -> None:
    lacking = tmp_path / "lacking"
    shutil.copytree(made.folder, lacking)
    weights = load_file(lacking / "model.safetensors")
    del weights["model.layers.3.hnorm.weight"]
    save_file(weights, lacking / "model.safetensors", metadata={"format": "pt"})
    narrow = tmp_path / "narrow"
    shutil.copytree(made.folder, narrow)
    weights = load_file(narrow / "model.safetensors")
    weights["model.layers.3.eh_proj.weight"] = torch.zeros(8, 16)
    save_file(weights, narrow / "model.safetensors", metadata={"format": "pt"})
    refused = {
        r"it lacks model.layers.3.hnorm.weight; use": lacking,
        r"eh_proj.weight has shape \[8, 16\]": narrow,
        r"it lacks model.layers.3.enorm.weight, .*shared_head.norm": saved_model().folder,
        r"it lacks mtp.pre_fc_norm_embedding.weight, .* mtp.layers.0.input_layernorm.weight": saved_model(
            **CASES["qwen3_next"]
        ).folder,
    }
    for message, folder in refused.items():
        with pytest.raises(StartError, match=f"--speculation mtp: (?s:.)*({message})"):
            opened_both(engine_config(folder, drafter="mtp"))
