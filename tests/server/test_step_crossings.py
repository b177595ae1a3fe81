"""A decode step touches Python a fixed number of times, whatever the rows."""

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any

import pytest
import tiny_model
from driver import make_engine
from family_models import CASES
from penstock_server.base.config import CudaConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Append, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.pb import engine_pb2 as pb
from penstock_server.rpc.conversion import Encoding
from shard_client import plan_fields

penstock_endpoint = pytest.importorskip("penstock_endpoint", reason="penstock-endpoint is not installed")
from penstock_server.rpc.columns import outcome_to_columns, plan_from_columns  # noqa: E402 - needs the module

FEW, MANY = 2, 40
# On a CPU nothing is drafted in steps of so many rows and more.
UNDRAFTED = 20
PROMPT_LEN = 3
GREEDY = SamplingParams()
DRAWN = SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3)


@pytest.fixture(params=[(FEW, MANY), (1,)], ids=["recorded", "op by op"])
def engine(request: pytest.FixtureRequest, saved_model: Callable[..., Any]) -> Engine:
    cuda = CudaConfig(graph_sizes=request.param)
    return make_engine(saved_model(head_dim=16).folder, num_slots=MANY, num_blocks=4 * MANY, cuda=cuda)


def admit(slot: int, sampling: SamplingParams) -> Admit:
    return Admit(slot, [5 + slot, 6, 7], PROMPT_LEN, [4 * slot], replace(sampling, seed=slot))


def run(engine: Engine, encoded: bytes) -> bytes:
    """A step from the bytes of its plan to those of its outcome."""
    outcome = engine.launch(plan_from_columns(penstock_endpoint.Plan(encoded))).resolve()
    return outcome_to_columns(outcome, Encoding()).encoded()


def crossings(step: Callable[[], object]) -> Counter[str]:
    """Calls of functions in Python and from Python, by name; but for one that is made where work is worth threads."""
    found: Counter[str] = Counter()

    def count(_frame: Any, event: str, called: Any) -> None:
        if event == "call":
            found[_frame.f_code.co_qualname] += 1
        elif event == "c_call":
            found[called.__qualname__] += 1

    # Otherwise, what the collector frees of other tests would be counted, too.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
        gc.enable()
    del found["get_num_threads"]
    return found


def allocations(step: Callable[[], object]) -> Counter[str]:
    """Blocks of memory that Python holds more for the result of a step, and at most while it runs."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = sys.getallocatedblocks()
        kept = step()
        held = sys.getallocatedblocks() - before
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept
    return Counter(blocks=held, kilobytes=peak // 1024)


def decode_crossings(
    engine: Engine, num_rows: int, sampling: SamplingParams, **options: Any
) -> list[Counter[str]]:
    """The counts of decode steps in which some rows are to be sampled apart. `max_drafts`: all spans are open.

    A size is recorded in its first step, and prepared to be one call in its second.
    """
    for _ in range(2):
        counted = _counted(engine, num_rows, sampling, **options)
    return counted


def _counted(
    engine: Engine,
    num_rows: int,
    sampling: SamplingParams,
    keeps_states: bool = False,
    counted_by: Callable[[Callable[[], object]], Counter[str]] = crossings,
    num_apart: int = 0,
    max_drafts: int | None = None,
) -> list[Counter[str]]:
    engine.clear()

    def encoded(plan: Plan) -> bytes:
        return pb.Plan(epoch=1, step=1, **plan_fields(plan)).SerializeToString()

    slots = range(num_rows)
    prompts = [Span(slot, 0, PROMPT_LEN) for slot in slots]
    apart = replace(sampling, repetition_penalty=1.1)
    admitted = [admit(slot, apart if slot < num_apart else sampling) for slot in slots]
    run(engine, encoded(Plan(1, 1, admitted=admitted, spans=prompts)))
    counted = []
    for position in range(PROMPT_LEN, PROMPT_LEN + 3):
        # A block for every row in the step that needs it; drafts need theirs before.
        needs_block = position == (4 if max_drafts is None else PROMPT_LEN)
        appended = [Append(slot, [4 * slot + 1]) for slot in slots] if needs_block else []
        spans, snapshots = [Span(slot, position, 1) for slot in slots], dict(zip(slots, slots, strict=True))
        plan = Plan(1, 1, appended=appended, spans=spans, snapshots=snapshots if keeps_states else {})
        if max_drafts is not None:
            plan = replace(plan, open_drafts=dict.fromkeys(slots, max_drafts))
        counted.append(counted_by(partial(run, engine, encoded(plan))))
    return counted


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_decode_step_crosses_into_python_as_often_for_many_rows(
    engine: Engine, sampling: SamplingParams
) -> None:
    few, many = (decode_crossings(engine, num_rows, sampling) for num_rows in (FEW, MANY))
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many - of_few == of_few - of_many == Counter()


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_row_that_is_sampled_apart_costs_as_much_among_many(
    engine: Engine, sampling: SamplingParams
) -> None:
    none, few, many = (
        decode_crossings(engine, num_rows, sampling, num_apart=num_apart)
        for num_rows, num_apart in ((MANY, 0), (FEW, 1), (MANY, 1))
    )
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many - of_few == of_few - of_many == Counter()
    assert sum(none[0].values()) < sum(many[0].values())


def test_open_spans_cost_as_much_for_many_rows_where_nothing_is_drafted(engine: Engine) -> None:
    few, many = (decode_crossings(engine, num_rows, GREEDY, max_drafts=2) for num_rows in (UNDRAFTED, MANY))
    for of_few, of_many in zip(few, many, strict=True):
        assert of_few["Stager.settle"] == 1
        assert of_many - of_few == of_few - of_many == Counter()


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_decode_step_allocates_as_often_for_many_rows(engine: Engine, sampling: SamplingParams) -> None:
    # The least of some steps: what grows in one of them by chance is not the step's.
    few, many = (
        reduce(and_, decode_crossings(engine, num_rows, sampling, counted_by=allocations))
        for num_rows in (FEW, MANY)
    )
    assert many["blocks"] - few["blocks"] < MANY // 2, "no object for a row"
    # Staged numbers are 56 bytes a row, and what comes over the wire is counted, too.
    assert many["kilobytes"] - few["kilobytes"] < MANY // 6, "less than 170 bytes a row at a time"


def test_states_are_kept_by_as_many_crossings_for_many_rows(tmp_path: Path) -> None:
    options = {**CASES["lfm2"], "hidden_size": 64}
    tiny_model.save(tmp_path, tiny_model.TinyModel(options.pop("family"), options))
    cuda = CudaConfig(graph_sizes=(FEW, MANY))
    engine = make_engine(tmp_path, num_slots=MANY, num_blocks=4 * MANY, num_snapshots=MANY, cuda=cuda)
    few, many = (decode_crossings(engine, num_rows, GREEDY, keeps_states=True) for num_rows in (FEW, MANY))
    for of_few, of_many in zip(few, many, strict=True):
        assert of_few["States.keep"] == 1
        assert of_many - of_few == of_few - of_many == Counter()


def test_a_row_that_is_not_plain_takes_nothing_from_the_others(engine: Engine) -> None:
    """Rows of a mixed step choose what they choose in a step of plain decodes."""

    def tokens(last: SamplingParams) -> list[list[int]]:
        engine.clear()
        admitted = [admit(0, GREEDY), admit(1, DRAWN), admit(2, last)]
        prompts = [Span(slot, 0, PROMPT_LEN) for slot in range(3)]
        outcomes = [engine.launch(Plan(1, 1, admitted=admitted, spans=prompts)).resolve()]
        spans = [Span(slot, PROMPT_LEN, 1) for slot in range(3)]
        outcomes.append(engine.launch(Plan(1, 2, spans=spans)).resolve())
        return [outcome.sampled_ids for outcome in outcomes]

    plain, mixed = tokens(GREEDY), tokens(SamplingParams(num_top_logprobs=2))
    assert plain == mixed
