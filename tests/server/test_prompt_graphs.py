"""Steps with prompts in a fixed number of tokens, which are recorded here: the same tokens, whatever pads a step.

A GPU captures the same code; `test_capture` watches the capture itself.
"""

import logging
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from pathlib import Path
from typing import Any

import pytest
from counting_model import counting_model, eagle_head, medusa_heads
from driver import Driver, Sequence, execute_on, make_engine
from open_spans import SIZES, Told, generate
from penstock_kernels.native.recording import Arena, NotRecordable, Recording
from penstock_server.base.config import CudaConfig
from penstock_server.engine import recordings
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.graph_pool import GraphPool
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.plan import Admit, Drafts, Plan, Span
from penstock_server.engine.prompt_graphs import PromptGraphs
from penstock_server.engine.sampling_params import SamplingParams

FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"head_dim": 32}),
    ("gemma2", {"head_dim": 16}),
    ("mistral", {"sliding_window": 6, "head_dim": 16}),
    ("qwen3_moe", {"head_dim": 16}),
    ("gpt2", {"head_dim": None, "num_key_value_heads": None, "hidden_size": 64}),
]
DRAWN = SamplingParams(temperature=0.9, top_k=20, seed=7, num_top_logprobs=3)


def with_graphs(folder: Any, sizes: tuple[int, ...], **options: Any) -> Engine:
    engine = make_engine(folder, cuda=CudaConfig(()), is_poisoned=True, **options)
    pool = GraphPool(engine.slots.device)
    taps = engine.drafter.taps
    engine.prompt_graphs = PromptGraphs(engine.model, engine.cache, engine.slots, sizes, pool, taps)
    engine.capture()
    return engine


def sequences() -> list[Sequence]:
    kinds = [
        SamplingParams(),
        DRAWN,
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(prompt_logprobs=True),
    ]
    return [
        Sequence([3 + number, 5, 9, 2, 8, 8, 1, 4, 4, 4, 6][: 2 + 2 * number], 4 + number, kinds[number % 4])
        for number in range(5)
    ]


def admit(engine: Engine, *lengths: int) -> list[Span]:
    """Slots with sequences of these lengths, and spans over all of each."""
    admitted = [
        Admit(slot, [5] * length, length, [3 * slot, 3 * slot + 1, 3 * slot + 2], SamplingParams())
        for slot, length in enumerate(lengths)
    ]
    engine.slots.apply(Plan(1, 1, admitted=admitted))
    return [Span(slot, 0, length) for slot, length in enumerate(lengths)]


def check(found: list[Sequence], expected: list[Sequence]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.output == other.output
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.prompt_logprobs == pytest.approx(other.prompt_logprobs, abs=1e-4)


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_tokens_are_those_of_free_steps(
    saved_model: Callable[..., Any], family: str, options: dict[str, Any]
) -> None:
    folder = saved_model(family, **options).folder
    free = Driver(execute_on(make_engine(folder, cuda=CudaConfig(())))).run(sequences(), seed=5)
    engine = with_graphs(folder, (4, 8, 20))
    free_steps: list[Any] = []
    stage = engine.staging.stage

    def counted(*arguments: Any) -> Any:
        step = stage(*arguments)
        free_steps.extend([step] if step.padded is None else [])
        return step

    engine.staging.stage = counted  # type: ignore[method-assign,assignment]
    check(Driver(execute_on(engine)).run(sequences(), seed=5), free)
    assert not free_steps, "every step has few tokens"


def test_a_step_is_recorded_once(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, computed = with_graphs(saved_model(head_dim=16).folder, (8, 20)), []
    compute = PromptGraphs._compute

    def counted(graphs: PromptGraphs, size: int, num_read: int, is_tapped: bool) -> None:
        computed.append((size, num_read))
        compute(graphs, size, num_read, is_tapped)

    monkeypatch.setattr(PromptGraphs, "_compute", counted)
    Driver(execute_on(engine)).run(sequences(), seed=5)
    assert len(computed) == len(set(computed)) > 1
    assert {size for size, _num_read in computed} == {8, 20}


def test_where_nothing_can_be_recorded_no_step_is_padded(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = saved_model(head_dim=16).folder
    free = Driver(execute_on(make_engine(folder, cuda=CudaConfig(())))).run(sequences(), seed=5)

    def refused(compute: Callable[[], object], _arena: Arena) -> Recording:
        compute()
        raise NotRecordable("a test says so")

    monkeypatch.setattr(recordings, "record", refused)
    engine = with_graphs(folder, (8, 20))
    with caplog.at_level(logging.INFO):
        check(Driver(execute_on(engine)).run(sequences(), seed=5), free)
    assert caplog.text.count("steps with prompts are not recorded: a test says so") == 1
    engine.clear()
    assert engine.prompt_graphs is not None
    assert engine.prompt_graphs.shape_for(admit(engine, 5)) is None


def test_a_step_takes_the_smallest_size_and_larger_ones_run_free(saved_model: Callable[..., Any]) -> None:
    engine = with_graphs(saved_model(head_dim=16).folder, (4, 16), num_slots=4)
    graphs = engine.prompt_graphs
    assert graphs is not None
    spans = admit(engine, 1, 2, 10, 4)
    assert graphs.shape_for(spans[:1]) == (4, 4, True)
    assert graphs.shape_for(spans[:2]) == (4, 4, True)
    assert graphs.shape_for(spans[:3]) == (16, 4, True)
    assert graphs.shape_for(spans) is None


def test_more_prompts_than_a_graph_has_room_for_run_free(saved_model: Callable[..., Any]) -> None:
    engine = with_graphs(saved_model(head_dim=16).folder, (200,), num_slots=20, num_blocks=64)
    graphs = engine.prompt_graphs
    assert graphs is not None
    spans = admit(engine, *[9] * 17, 8, 1)
    assert graphs.shape_for(spans) is None
    assert graphs.shape_for(spans[1:]) == (200, 20, True)


def test_invariant_spans_of_a_few_tokens_run_free(saved_model: Callable[..., Any]) -> None:
    """Attention computes them by their number of tokens."""
    engine = with_graphs(saved_model(head_dim=16).folder, (40,), batch_invariant=True)
    graphs = engine.prompt_graphs
    assert graphs is not None
    spans = admit(engine, 1, 9, 2, 8)
    assert graphs.shape_for(spans[:2]) is not None
    assert graphs.shape_for(spans[:3]) is None
    assert graphs.shape_for(spans[3:]) is None


class Wordy(Drafter):
    """Drafts the same token as often as it may."""

    def draft(self, spans: Many[Span], wanted: Mapping[int, int]) -> Drafts:
        return {slot: (5,) * most for slot, most in wanted.items()}


def drafted(engine: Engine) -> list[list[int]]:
    """The tokens of steps with eight drafts for one slot and one for another."""
    engine.drafter = Wordy()
    blocks = [list(range(8 * slot, 8 * slot + 8)) for slot in range(2)]
    admitted = [Admit(slot, [1, 2], 2, blocks[slot], SamplingParams()) for slot in range(2)]
    outcomes = []
    plan = Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, 2) for slot in range(2)])
    for step in range(2, 5):
        outcomes.append(engine.launch(plan).resolve())
        plan = Plan(1, step, spans=[Span(slot, 20, 1) for slot in range(2)], open_drafts={0: 8, 1: 1})
    assert [outcome.num_drafted for outcome in outcomes] == [{}, {0: 8, 1: 1}, {0: 8, 1: 1}]
    return [list(outcome.sampled_ids) for outcome in outcomes]


def test_drafts_are_part_of_such_a_step(saved_model: Callable[..., Any]) -> None:
    folder = saved_model(head_dim=16).folder
    free = drafted(make_engine(folder, cuda=CudaConfig(())))
    assert drafted(with_graphs(folder, (16,))) == free


@pytest.mark.parametrize("heads", [medusa_heads, eagle_head])
def test_heads_read_what_such_a_step_leaves(
    saved_model: Callable[..., Any], tmp_path: Path, heads: Callable[[Path, Path], Path]
) -> None:
    """They know the token after each, so that all that they draft is right, from the first decode on."""
    model = counting_model(saved_model, tmp_path / "model", head_dim=16)
    engine = with_graphs(model, (16,), draft_model_path=heads(model, tmp_path / "heads"), **SIZES)
    engine.drafter = unlimited(engine.drafter)
    told = generate(execute_on(engine), Told(), 0, [7, 8, 9], 0, 9, list(range(10)))
    assert told.ids == list(range(10, 10 + len(told.ids)))
    assert told.num_drafted == len(told.ids) - told.num_steps > 0
