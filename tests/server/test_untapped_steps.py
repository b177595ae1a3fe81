"""A step whose hidden states nobody reads computes what it computes in an engine without a drafter, though another step
leaves some."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from counting_model import counting_model, eagle_head, medusa_heads
from driver import execute_on, make_engine
from open_spans import MAX_LEN, SIZES, admit, drafting, prompt
from penstock_server.base.config import CudaConfig, DraftLimits
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from test_read_rows import watched

Heads = Callable[[Path, Path], Path]


@pytest.fixture(params=[eagle_head, medusa_heads])
def heads(request: pytest.FixtureRequest) -> Heads:
    """What makes the folder of heads."""
    made: Heads = request.param
    return made


@pytest.fixture(params=["free", "recorded"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Steps with prompts op by op, or recorded."""
    return {"cuda": CudaConfig(())} if request.param == "free" else {}


@pytest.fixture
def model(saved_model: Callable[..., Any], tmp_path: Path) -> Path:
    return counting_model(saved_model, tmp_path / "model", head_dim=16, num_hidden_layers=2)


def admitted_step(engine: Engine, num_slots: int) -> None:
    """Prompts of these slots."""
    admits = [admit(slot, SamplingParams()) for slot in range(num_slots)]
    spans = [Span(it.slot, 0, it.prompt_len) for it in admits]
    assert not execute_on(engine)(Plan(1, 1, admitted=admits, spans=spans)).errors


def num_calls(engine: Engine, size: int, is_tapped: bool) -> int:
    """The calls of a recorded step."""
    assert engine.graphs is not None
    recorded = engine.graphs.recorded(size, is_tapped)
    assert recorded is not None
    return len(recorded[0])


def test_decodes_that_nobody_reads_copy_nothing(model: Path, heads: Heads, tmp_path: Path) -> None:
    engine = make_engine(model, draft_model_path=heads(model, tmp_path / "heads"), **SIZES)
    engine.drafter = unlimited(engine.drafter)
    plain = make_engine(model, **SIZES)
    for each in (engine, plain):
        admitted_step(each, 2)
        spans = [Span(slot, len(prompt(slot)), 1) for slot in range(2)]
        assert not execute_on(each)(Plan(1, 2, spans=spans)).errors
    assert num_calls(engine, 2, is_tapped=False) == num_calls(plain, 2, is_tapped=False)
    open_spans = [Span(slot, MAX_LEN - 1, 1) for slot in range(2)]
    outcome = execute_on(engine)(Plan(1, 3, spans=open_spans, open_drafts=dict.fromkeys(range(2), 0)))
    assert not outcome.errors
    assert num_calls(engine, 2, is_tapped=True) > num_calls(engine, 2, is_tapped=False)


def num_python_calls(engine: Engine, plan: Plan) -> int:
    """The functions of Python that a step calls."""
    called: list[str] = []
    sys.setprofile(
        lambda frame, event, _arg: called.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        outcome = engine.launch(plan).resolve()
    finally:
        sys.setprofile(None)
    assert not outcome.errors
    return len(called)


def test_a_closed_step_hardly_asks_who_drafts(model: Path, heads: Heads, tmp_path: Path) -> None:
    """Each function takes longer where the model has thrown it out of the caches."""
    engine = make_engine(model, draft_model_path=heads(model, tmp_path / "heads"), **SIZES)
    plain = make_engine(model, **SIZES)
    found = []
    for each in (engine, plain):
        admitted_step(each, 3)
        plans = [
            Plan(1, 2 + step, spans=[Span(slot, len(prompt(slot)) + step, 1) for slot in range(3)])
            for step in range(6)
        ]
        found.append([num_python_calls(each, plan) for plan in plans][-1])
    assert found[0] <= found[1] + 4


def test_of_prompts_beside_too_many_sequences_the_last_layer_computes_what_is_read(
    model: Path,
    heads: Heads,
    tmp_path: Path,
    options: dict[str, Any],
) -> None:
    engine = make_engine(
        model,
        draft_model_path=heads(model, tmp_path / "heads"),
        draft_limits=DraftLimits(max_drafts=4, max_drafting=1),
        **SIZES,
        **options,
    )
    admitted_step(engine, 2)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    late = admit(2, SamplingParams())
    spans = [*(Span(slot, len(prompt(slot)), 1) for slot in range(2)), Span(2, 0, late.prompt_len)]
    outcome = execute_on(engine)(Plan(1, 2, admitted=[late], spans=spans))
    assert outcome.sampled_slots == [0, 1, 2]
    assert rows[0] >= 2 + late.prompt_len
    assert rows[-1] <= 4


def test_heads_of_medusa_read_what_tokens_are_sampled_from(
    model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    engine = drafting(model, medusa_heads(model, tmp_path / "heads"), **options)
    execute = execute_on(engine)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    admits = [admit(slot, SamplingParams()) for slot in range(3)]
    told = execute(Plan(1, 1, admitted=admits, spans=[Span(0, 0, 5), Span(1, 0, 7)]))
    assert told.sampled_slots == [1]
    assert rows[-1] == 1
    rows.clear()
    spans = [Span(1, MAX_LEN - 1, 1), Span(0, 5, 1), Span(2, 0, 8)]
    told = execute(Plan(1, 2, spans=spans, open_drafts={1: 4}))
    assert told.sampled_slots == [1, 1, 1, 1, 1, 0, 2], "all drafts are right"
    assert rows[-1] <= 8
    told = execute(
        Plan(1, 3, spans=[Span(slot, MAX_LEN - 1, 1) for slot in (2, 0)], open_drafts={0: 4, 2: 4})
    )
    assert told.sampled_slots == [2] * 5 + [0] * 5
