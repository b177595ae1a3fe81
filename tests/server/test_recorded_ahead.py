"""Steps with drafts on a CPU are recorded before the first request, as far as there is time."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from counting_model import noisy_heads
from driver import make_engine
from family_models import CASES
from open_spans import DRAWN, MAX_DRAFTS, MAX_LEN, SIZES, admit
from parallel_oracle import noise, saved_noise
from penstock_kernels.native.library import library
from penstock_kernels.native.recording import num_recorded
from penstock_server.base.config import DraftLimits
from penstock_server.engine import recorded_ahead
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from test_eagle import random_head
from test_mtp import make

pytestmark = pytest.mark.skipif(library() is None, reason="needs the ops in C")

LIMITS = DraftLimits(MAX_DRAFTS, 3)
SAMPLINGS = [SamplingParams(), DRAWN, SamplingParams()]
REPEATED = [7, 8, 9] * 4
SMALL = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 24, "hidden_size": 48}
# A folder, and the options of an engine that drafts for it.
Made = tuple[Path, dict[str, Any]]


def _model(saved_model: Callable[..., Any], _to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": saved_model("llama", **SMALL).folder}


def _medusa(saved_model: Callable[..., Any], to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": noisy_heads(72, to / "heads")}


def _eagle(saved_model: Callable[..., Any], to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": random_head(to / "head")[0]}


def _parallel(saved_model: Callable[..., Any], to: Path) -> Made:
    return saved_model("llama").folder, {"draft_model_path": saved_noise(to / "head", noise())}


def _mtp(saved_model: Callable[..., Any], to: Path) -> Made:
    return make(saved_model, to / "mtp", "glm4_moe").folder, {"drafter": "mtp"}


def _states(saved_model: Callable[..., Any], _to: Path) -> Made:
    draft = saved_model("llama", **SMALL).folder
    options = {"num_draft_states": 40, "num_snapshots": 20, "draft_model_path": draft}
    return saved_model(**CASES["falcon_h1"]).folder, options


DRAFTERS = [_model, _medusa, _eagle, _parallel, _mtp, _states]


@pytest.mark.parametrize("branches", [1, 3])
@pytest.mark.parametrize("kind", DRAFTERS)
def test_steps_with_drafts_record_nothing_in_a_server_that_is_ready(
    saved_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: Callable[..., Made],
    branches: int,
) -> None:
    monkeypatch.setattr(recorded_ahead, "_SECONDS", 600)
    folder, options = kind(saved_model, tmp_path)
    engine = make_engine(folder, draft_limits=LIMITS, draft_branches=branches, **{**SIZES, **options})
    engine.drafter = unlimited(engine.drafter)
    for count in range(1, LIMITS.max_drafting + 1):
        execute = begin(engine, count)
        num_before, drafted = num_recorded(), [execute() for _ in range(4)]
        assert num_recorded() == num_before
        assert min(drafted) >= count


def begin(engine: Engine, count: int) -> Callable[[], int]:
    """Runs a step of so many sequences, which may draft, and returns how many it has drafted. The prompts, of any
    length, are behind it: what is told of them, too."""
    engine.clear()
    length = len(REPEATED)
    admitted = [
        replace(admit(slot, SAMPLINGS[slot]), token_ids=REPEATED, prompt_len=length) for slot in range(count)
    ]
    prompts = [Span(slot, 0, length) for slot in range(count)]
    engine.launch(Plan(1, 1, admitted=admitted, spans=prompts)).resolve()
    spans = [Span(slot, MAX_LEN - 1, 1) for slot in range(count)]
    numbers = itertools.count(2)

    def execute() -> int:
        plan = Plan(1, next(numbers), spans=spans, open_drafts=dict.fromkeys(range(count), MAX_DRAFTS))
        outcome = engine.launch(plan).resolve()
        assert not outcome.errors
        return sum(outcome.num_drafted.values())

    execute()
    return execute


def test_a_server_is_ready_in_time_whatever_there_is_to_record(
    saved_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_ahead, "_SECONDS", 0)
    folder, options = _eagle(saved_model, tmp_path)
    make_engine(folder, **{**SIZES, **options})
    without = num_recorded()
    make_engine(folder, draft_limits=LIMITS, **{**SIZES, **options})
    in_no_time = num_recorded() - without
    make_engine(folder, **{**SIZES, **options})
    assert num_recorded() - without - in_no_time == in_no_time
