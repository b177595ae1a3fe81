"""Of a prompt only the last hidden state is read. The last layer that keeps anything computes no other row further than
what it keeps of it, and layers behind it compute no other row; where others are read, all are computed."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import family_models
import pytest
import tiny_model
import whole_model
from counting_model import counting_model, eagle_head
from driver import Driver, Sequence, execute_on, make_engine
from open_spans import drafting, prompt
from penstock_server.base.config import CudaConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.head_drafter import HeadDrafter
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.staging import Staging

FREE = CudaConfig(())
PROMPT = [*range(40, 61)]
DRAWN = SamplingParams(temperature=0.8, seed=3, num_top_logprobs=2, repetition_penalty=1.2)


@pytest.fixture(params=["free", "recorded"])
def cuda(request: pytest.FixtureRequest) -> CudaConfig | None:
    """Steps op by op, or recorded where they can be."""
    return FREE if request.param == "free" else None


def engine_of(folder: Path, cuda: CudaConfig | None, **options: Any) -> Engine:
    return make_engine(folder, **({} if cuda is None else {"cuda": cuda}), **options)


def watched(layers: Iterable[Any]) -> list[int]:
    """The rows that the feed-forward of each layer computes from now on, in the order of the calls."""
    found: list[int] = []
    for layer in layers:
        layer.feed_forward.register_forward_pre_hook(lambda _module, given: found.append(len(given[0])))
    return found


def run(engine: Engine, *spans: Span, params: SamplingParams | None = None) -> Any:
    """A step over these spans, of slots that have the prompt."""
    blocks = iter(range(64))
    admitted = [
        Admit(span.slot, PROMPT, len(PROMPT), [next(blocks) for _ in range(8)], params or SamplingParams())
        for span in spans
        if span.start == 0
    ]
    outcome = execute_on(engine)(Plan(1, 1, admitted=admitted, spans=list(spans)))
    assert not outcome.errors
    return outcome


def test_the_last_layer_computes_the_rows_that_are_read(
    saved_model: Callable[..., Any], cuda: CudaConfig | None
) -> None:
    engine = engine_of(saved_model(num_hidden_layers=3, head_dim=16).folder, cuda)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    run(engine, Span(0, 0, 15))
    assert rows[-1] == 1, "nothing is read, and a step has a row"
    rows.clear()
    run(engine, Span(0, 15, 6), Span(1, 0, 21), Span(2, 0, 5))
    assert rows[0] == rows[1] >= 32
    assert rows[-1] == 2, "two of these spans end with the last known token"


def test_rows_are_read_with_drafts_beside_prompts(
    saved_model: Callable[..., Any], cuda: CudaConfig | None
) -> None:
    engine = engine_of(saved_model(num_hidden_layers=2, head_dim=16).folder, cuda)
    execute = execute_on(engine)
    run(engine, Span(0, 0, 21), Span(1, 0, 3))
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    span, others = Span(0, 21, 1), Span(1, 3, 18)
    outcome = execute(Plan(1, 2, spans=[span, others], open_drafts={0: 2}))
    assert not outcome.errors
    assert len(rows) == 2
    assert rows[-1] <= 4


def test_all_rows_are_computed_where_they_are_read(
    saved_model: Callable[..., Any], cuda: CudaConfig | None
) -> None:
    engine = engine_of(saved_model(head_dim=16).folder, cuda)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    run(engine, Span(0, 0, 21), params=SamplingParams(prompt_logprobs=True))
    assert min(rows) >= 21


def test_spans_that_are_computed_by_themselves_are_so_in_all_layers(
    saved_model: Callable[..., Any], cuda: CudaConfig | None
) -> None:
    engine = engine_of(saved_model(head_dim=16).folder, cuda, batch_invariant=True)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    run(engine, Span(0, 0, 21))
    assert min(rows) >= 21


def test_layers_behind_the_last_cache_compute_no_other_row(tmp_path: Path, cuda: CudaConfig | None) -> None:
    options = {**family_models.CASES["gemma4_text"]}
    family = options.pop("family")
    whole_model.save(tmp_path, family.removesuffix("_text"), family, options)
    engine = engine_of(tmp_path, cuda)
    rows = watched(engine.model.layers)  # type: ignore[attr-defined]
    run(engine, Span(0, 0, 21))
    assert min(rows[:3]) >= 21
    assert rows[3:] == [1, 1, 1], "two of six layers have the keys and values of others"


def test_a_graph_of_a_gpu_computes_all_rows(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would need a size for each number of rows that are read."""
    engine = make_engine(saved_model(head_dim=16).folder)
    graphs = engine.prompt_graphs
    assert graphs is not None
    run(engine, span := Span(0, 0, 15))
    recorded = graphs.shape_for([span])
    monkeypatch.setattr(graphs, "_recordings", None)
    captured = graphs.shape_for([span])
    assert recorded is not None
    assert recorded.leaves_rows
    assert captured == recorded._replace(leaves_rows=False)


FAMILIES = ["llama", "falcon-7b", "gemma4_text", "gpt_oss", "deepseek_v3", "qwen3_next", "qwen2_moe"]


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_log_probabilities_are_those_of_all_rows(
    name: str, tmp_path: Path, cuda: CudaConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(family_models.CASES[name])
    family = options.pop("family")
    if family in family_models.TEXT_PARTS:
        whole_model.save(tmp_path, family.removesuffix("_text"), family, options)
    else:
        tiny_model.save(tmp_path, tiny_model.TinyModel(family, options))
    engine = engine_of(tmp_path, cuda)
    with_few = _generated(engine)
    monkeypatch.setattr(Staging, "_read_places", lambda _self, _spans: [])
    engine.clear()
    for one, other in zip(with_few, _generated(engine), strict=True):
        assert one.output == other.output
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def _generated(engine: Engine) -> list[Sequence]:
    engine.cache.spoil()
    sequences = [Sequence(PROMPT[: 3 + 6 * number], 5, DRAWN) for number in range(4)]
    found = Driver(execute_on(engine)).run(sequences, seed=2)
    assert not any(sequence.errors for sequence in found)
    return found


@pytest.fixture
def counting(saved_model: Callable[..., Any], tmp_path: Path) -> Engine:
    """A model that counts, and a head that knows it."""
    model = counting_model(saved_model, tmp_path / "model", head_dim=16)
    return drafting(model, eagle_head(model, tmp_path / "head"))


def test_a_head_computes_the_rows_that_it_guesses_from(counting: Engine) -> None:
    head = counting.drafter
    assert isinstance(head, HeadDrafter)
    rows = watched([head.head.layer])
    tokens = [*range(100, 126)]
    admitted = [Admit(0, tokens, len(tokens), list(range(10)), SamplingParams())]
    execute = execute_on(counting)
    known = list(execute(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, 26)])).sampled_ids)
    for step in (2, 3):
        span = Span(0, 25 + len(known), 1)
        known += execute(Plan(1, step, spans=[span], open_drafts={0: 3})).sampled_ids
    assert known == [*range(known[0], known[0] + len(known))]
    assert len(known) == 1 + 2 * 4, "all drafts are right"
    assert set(rows) == {1}


def test_a_model_whose_last_hidden_states_are_tapped_computes_all(counting: Engine) -> None:
    """A head of the first version reads what the last layer returns."""
    rows = watched(counting.model.layers)  # type: ignore[attr-defined]
    admitted = [Admit(0, prompt(0), len(prompt(0)), list(range(10)), SamplingParams())]
    outcome = execute_on(counting)(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, len(prompt(0)))]))
    assert not outcome.errors
    assert min(rows) >= len(prompt(0))
