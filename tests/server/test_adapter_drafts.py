"""Drafts of every kind for sequences with adapters: the tokens are those without drafts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_model import counting_model, eagle_head, medusa_heads, parallel_head
from driver import make_engine
from open_spans import MAX_DRAFTS, MAX_LEN, NUM_BLOCKS, check_same, play
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.ngram_drafter import NgramDrafter
from penstock_server.engine.sampling_params import SamplingParams

pytest.importorskip("peft")
from peft_adapters import save_adapter, unmerged

# PEFT uses names of transformers that are to go.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

SIZES: dict[str, Any] = {
    "max_sequence_len": MAX_LEN,
    "num_slots": 10,
    "num_blocks": 10 * NUM_BLOCKS,
    "max_step_tokens": 100,
    "is_poisoned": True,
}
# A sequence each; those of the base model are the last two.
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=1.1, seed=9),
    SamplingParams(num_top_logprobs=3),
    SamplingParams(),
    SamplingParams(temperature=0.9, seed=4),
]


@pytest.fixture(scope="module")
def model(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with head sizes that the ops in C take, so that its steps are recorded."""
    return counting_model(saved_model, tmp_path_factory.mktemp("counting") / "model", head_dim=16)


@pytest.fixture(scope="module")
def adapters(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    options: list[dict[str, Any]] = [
        {"target_modules": ["q_proj", "down_proj"], "r": 4},
        {"target_modules": ["o_proj", "lm_head"], "r": 3, "use_dora": True},
        {"target_modules": ["v_proj", "down_proj"], "r": 2, "alora_invocation_tokens": [201, 202]},
    ]
    root, shape = tmp_path_factory.mktemp("adapters"), saved_model(head_dim=16).oracle
    for number, each in enumerate(options[:2]):
        save_adapter(root / str(number), shape, number, **each)
    unmerged(root / "2", shape, 2, **options[2])
    return [root / str(number) for number in range(3)]


def drafting(kind: str, model: Path, to: Path) -> Engine:
    """An engine that drafts as many as it may."""
    makers: dict[str, Callable[[], Path]] = {
        "a model": lambda: model,
        "medusa": lambda: medusa_heads(model, to / "heads", num_layers=2),
        "eagle": lambda: eagle_head(model, to / "head"),
        "parallel": lambda: parallel_head(model, to / "head"),
    }
    if kind == "n-grams":
        engine = make_engine(model, **SIZES)
        engine.drafter = NgramDrafter(engine.slots)
        return engine
    engine = make_engine(model, draft_model_path=makers[kind](), **SIZES)
    engine.drafter = unlimited(engine.drafter)
    return engine


@pytest.mark.parametrize("kind", ["n-grams", "a model", "medusa", "eagle", "parallel"])
def test_drafts_change_no_token_of_an_adapter(
    kind: str, model: Path, adapters: list[Path], tmp_path: Path
) -> None:
    engine = drafting(kind, model, tmp_path)
    ids = [engine.slots.adapters.load(folder, "", "test").adapter_id for folder in adapters]
    more = [{"adapter_id": adapter_id} for adapter_id in ids]
    expected = play(engine, PARAMS, None, more)
    base = play(engine, PARAMS, None)
    got = play(engine, PARAMS, MAX_DRAFTS, more)
    check_same(got, expected)
    assert [it.ids != other.ids for it, other in zip(expected, base, strict=True)] == [True] * 3 + [False] * 2
    assert kind == "n-grams" or all(it.num_drafted > 0 for it in got)
