"""Models without a row run by the code of transformers, over our cache, and give what transformers gives alone."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thread_ranks
from driver import Driver, Sequence, execute_on, make_engine
from family_models import BORROWED, CASES, KEPT
from penstock_server.architectures.recurrent_spec import KeptShape
from penstock_server.base.errors import StartError
from penstock_server.network.kv_cache import block_bytes
from penstock_server.network.states import KeptStates
from test_families import NUM_NEW, Expected, check, made_by

FEWEST = 15


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    """Makes the folder of a model and asks transformers, once."""
    made: dict[str, Expected] = {}

    def make(name: str) -> Expected:
        if name not in made:
            made[name] = made_by(tmp_path_factory.mktemp(name), name, {**BORROWED, **KEPT}[name])
        return made[name]

    return make


def test_the_sample_is_large_enough() -> None:
    assert len(BORROWED) >= FEWEST
    assert not set(BORROWED) & {options["family"] for options in CASES.values()}


@pytest.mark.parametrize("name", BORROWED)
def test_greedy_equals_transformers(name: str, expected: Callable[[str], Expected]) -> None:
    want = expected(name)
    engine = make_engine(want.folder, max_sequence_len=100)
    assert "transformers" in engine.description.abilities
    engine.cache.spoil()
    check(execute_on(engine), want, seed=1)
    engine.clear()
    driver = Driver(execute_on(engine))
    donor = driver.run([Sequence(want.prompts[3], NUM_NEW)])[0]
    again = Sequence(want.prompts[3], NUM_NEW)
    driver.share_prefix(donor, again)
    assert driver.run([again])[0].output == want.greedy[3][0]


@pytest.mark.parametrize("name", BORROWED)
def test_two_ranks_equal_transformers(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    with thread_ranks.engines(want.folder, 2, monkeypatch, max_sequence_len=100) as ranks:
        check(thread_ranks.execute_on_all(ranks), want, seed=2)


def test_a_family_with_a_row_can_be_borrowed_too(saved_model: Callable[..., Any]) -> None:
    folder = saved_model().folder
    chosen = {impl: make_engine(folder, model_impl=impl) for impl in ("auto", "native", "transformers")}
    outputs = []
    for impl, engine in chosen.items():
        assert ("transformers" in engine.description.abilities) == (impl == "transformers")
        outputs.append(Driver(execute_on(engine)).run([Sequence([5, 6, 7], 8)])[0].output)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (
            "openai-gpt",
            {"hidden_size": 80, "head_dim": None, "num_key_value_heads": None},
            "it takes no cache",
        ),
        (
            "gpt_neox_japanese",
            {"hidden_size": 80, "head_dim": None},
            "step by step its log probabilities differ",
        ),
    ],
)
def test_what_would_be_wrong_is_refused(
    saved_model: Callable[..., Any], family: str, options: dict[str, Any], message: str
) -> None:
    # Some have a row of their own by now.
    with pytest.raises(StartError, match=message):
        make_engine(saved_model(family, **options).folder, model_impl="transformers")


@pytest.mark.parametrize("name", KEPT)
def test_what_keeps_more_than_keys_and_values_has_caches_of_its_own(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    engine = make_engine(want.folder, max_sequence_len=100)
    assert set(engine.description.abilities) >= {"transformers", "recurrent"}
    assert engine.description.limits.num_snapshots == 0
    check(execute_on(engine), want, seed=1)
    states = engine.cache.states
    assert isinstance(states, KeptStates)
    assert not states.of_slot, "what slots kept is gone with them"
    with thread_ranks.engines(want.folder, 2, monkeypatch, max_sequence_len=100) as ranks:
        check(thread_ranks.execute_on_all(ranks), want, seed=2)


def test_what_slots_keep_is_counted_in_blocks(expected: Callable[[str], Expected]) -> None:
    want = expected("minimax")
    engine = make_engine(want.folder, max_sequence_len=100)
    model = engine.model
    # Keys and values of the one layer that attends: four heads of eight numbers; a matrix for each head in the others.
    assert model.cache_shape.kept_bytes == 2 * 4 * 8 * 4
    assert isinstance(model.state_shape, KeptShape)
    assert model.state_shape.num_bytes >= 2 * 8 * 8 * 8 * 4
    assert block_bytes(model.cache_shape, 4, model.dtype) == 4 * model.cache_shape.kept_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: the code of transformers keeps"),
        ({"num_snapshots": 2}, "--max-snapshots 2: the code of transformers keeps"),
        ({"batch_invariant": True}, "--batch-invariant needs our own decoder"),
    ],
)
def test_what_caches_of_transformers_cannot_have_is_refused(
    expected: Callable[[str], Expected], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        make_engine(expected("minimax").folder, max_sequence_len=100, **options)


def test_native_refuses_what_has_no_row(expected: Callable[[str], Expected]) -> None:
    folder: Path = expected("biogpt").folder
    with pytest.raises(StartError, match="model_type 'biogpt' is not supported"):
        make_engine(folder, model_impl="native")
    with pytest.raises(StartError, match="transformers computes biogpt; leave it out"):
        make_engine(folder, batch_invariant=True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"hidden_size": "48"},
            r"cannot compute it: Validation error for field 'hidden_size': .*\bint\b.*48",
        ),
        ({"intermediate_size": 24}, "tensors of its files have other shapes than config.json makes"),
    ],
)
def test_why_transformers_cannot_compute_a_model_is_said_in_one_line(
    expected: Callable[[str], Expected], tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(expected("biogpt").folder, folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    with pytest.raises(StartError, match=message) as refused:
        make_engine(folder)
    assert "\n" not in str(refused.value)


def test_code_of_a_folder_is_named_and_not_run(
    saved_model: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved_model("llama").folder, folder)
    path = folder / "config.json"
    raw = {**json.loads(path.read_text()), "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}
    path.write_text(json.dumps(raw))
    with caplog.at_level(logging.INFO):
        make_engine(folder)
    assert "names code of the folder (auto_map), which is not run: llama is known here" in caplog.text
    path.write_text(json.dumps({**raw, "model_type": "mine"}))
    with pytest.raises(StartError, match=r"'mine' is not supported, its code is in the folder \(auto_map\)"):
        make_engine(folder)
    del raw["model_type"]
    path.write_text(json.dumps(raw))
    with pytest.raises(StartError, match="model_type is missing"):
        make_engine(folder)


def test_noise_needs_no_weights(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model().folder, model_impl="transformers", load_format="dummy")
    assert len(Driver(execute_on(engine)).run([Sequence([5, 6, 7], 4)])[0].output) == 4
