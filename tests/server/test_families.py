"""Every row of the registry gives what transformers gives: in odd chunks, mixed batches, on one rank and on two."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import baichuan_folder
import internlm2_folder
import oracle
import pytest
import thread_ranks
import tiny_model
import whole_model
from driver import Driver, Execute, Sequence, execute_on, make_engine
from family_models import CASES, CONVERTED, RENAMED, TEXT_PARTS
from penstock_server.architectures.registry import FAMILIES
from penstock_server.engine.adapters import AdapterUse
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.layers import adapted

NUM_NEW = 6
_CONVERTED = {"baichuan": baichuan_folder.save, "internlm2": internlm2_folder.save}


class Expected(NamedTuple):
    """A folder and what transformers says of its prompts."""

    folder: Path
    prompts: list[list[int]]
    greedy: list[tuple[list[int], list[float]]]


def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(301) for _ in range(length)] for length in (1, 5, 17, 33)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expected]:
    """Makes the folder of a case and asks transformers, once."""
    made: dict[str, Expected] = {}

    def make(name: str) -> Expected:
        if name not in made:
            options = dict(CASES[name])
            made[name] = made_by(tmp_path_factory.mktemp(name), options.pop("family"), options)
        return made[name]

    return make


def made_by(folder: Path, family: str, options: dict[str, Any]) -> Expected:
    """Write a model's folder, and ask transformers for what it says."""
    save = _CONVERTED.get(family) or _save(RENAMED.get(family, family))
    model = save(folder, options)
    if family in RENAMED:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": family}))
    greedy = [oracle.greedy(model, prompt, NUM_NEW) for prompt in prompts()]
    return Expected(folder, prompts(), greedy)


def _save(family: str) -> Callable[[Path, dict[str, Any]], Any]:
    if family in TEXT_PARTS:
        return lambda folder, options: whole_model.save(folder, family.removesuffix("_text"), family, options)
    return lambda folder, options: tiny_model.save(folder, tiny_model.TinyModel(family, options))


def test_every_row_has_a_case() -> None:
    assert set(_CONVERTED) == set(CONVERTED)
    assert {options["family"] for options in CASES.values()} == set(FAMILIES)


def check(execute: Execute, want: Expected, seed: int | None) -> list[Sequence]:
    """Run all prompts, in wild steps with a seed, and compare."""
    found = [Sequence(prompt, NUM_NEW) for prompt in want.prompts]
    Driver(execute).run(found, seed)
    for sequence, (tokens, logprobs) in zip(found, want.greedy, strict=True):
        assert not sequence.errors
        assert sequence.output == tokens
        assert sequence.logprobs == pytest.approx(logprobs, abs=1e-3)
    return found


@pytest.mark.parametrize("name", CASES)
def test_greedy_equals_transformers(name: str, expected: Callable[[str], Expected]) -> None:
    want = expected(name)
    engine = make_engine(want.folder, max_sequence_len=100)
    engine.cache.spoil()  # nothing that was not written may be read
    for seed in (None, 1):
        engine.clear()
        check(execute_on(engine), want, seed)


@pytest.mark.parametrize(
    "name", [name for name, options in CASES.items() if FAMILIES[options["family"]].recurrent is None]
)
def test_blocks_of_a_prefix_are_reused(name: str, expected: Callable[[str], Expected]) -> None:
    want = expected(name)
    engine = make_engine(want.folder, max_sequence_len=100)
    check_prefix(execute_on(engine), want)


def check_prefix(execute: Execute, want: Expected) -> None:
    """A prompt that begins with blocks of another is computed from there."""
    driver = Driver(execute)
    donor = driver.run([Sequence(want.prompts[3], NUM_NEW)])[0]
    again = Sequence(want.prompts[3], NUM_NEW)
    driver.share_prefix(donor, again)
    assert again.computed == 32
    driver.run([again])
    assert again.output == want.greedy[3][0]
    assert again.logprobs == pytest.approx(want.greedy[3][1], abs=1e-3)


@pytest.mark.parametrize(
    "name",
    [
        "afmoe",
        "baichuan",
        "baichuan2-13b",
        "bamba",
        "dbrx",
        "deepseek_v3",
        "glm4_moe",
        "gptj",
        "kimi_linear",
        "qwen3_next",
        "smollm3",
        "xverse",
    ],
)
def test_four_ranks_equal_transformers(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    with thread_ranks.engines(want.folder, 4, monkeypatch, max_sequence_len=100) as ranks:
        check(thread_ranks.execute_on_all(ranks), want, seed=3)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_equal_transformers(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = expected(name)
    with thread_ranks.engines(want.folder, 2, monkeypatch, max_sequence_len=100) as ranks:
        for rank in ranks:
            rank.cache.spoil()
        check(thread_ranks.execute_on_all(ranks), want, seed=2)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_that_can_have_adapters_applies_them(
    name: str, expected: Callable[[str], Expected], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(expected(name).folder, max_sequence_len=100)
    plain: Any = vars(adapted)["add_adapters"]
    applied = []

    def seen(*arguments: Any) -> Any:
        applied.append(id(arguments[3]))
        return plain(*arguments)

    monkeypatch.setattr(adapted, "add_adapters", seen)
    engine.launch(Plan(1, 1, admitted=[Admit(0, [5, 6, 7], 3, [0], SamplingParams())]))
    # One that does nothing to any layer.
    engine.slots.states[0].adapter = AdapterUse(0)
    assert engine.launch(Plan(1, 2, spans=[Span(0, 0, 3)])).resolve().sampled_slots == [0]
    tables = [id(module.adapters) for module in nn_modules(engine) if getattr(module, "adapters", None)]
    assert sorted(applied) == sorted(tables)
    assert len(tables) > 2 * engine.model.cache_shape.num_layers, "both parts of each layer, and the head"


def nn_modules(engine: Engine) -> list[Any]:
    model: Any = engine.model
    return list(model.modules())
