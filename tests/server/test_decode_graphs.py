"""Decode steps of fixed sizes, as a GPU replays them and a CPU too: the same tokens, whatever pads a step."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from copy import deepcopy
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on, make_engine
from family_models import CASES
from penstock_server.base.config import CudaConfig
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Drafts, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.load.cuda_memory import largest_plan

# Heads of recurrent layers that the ops in C take.
DELTA: dict[str, Any] = {
    **CASES["qwen3_5_text"],
    "head_dim": 32,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
}
SPACE: dict[str, Any] = CASES["mamba2"]
CONV: dict[str, Any] = {**CASES["lfm2"], "hidden_size": 64}
# The ops in C do not take these sizes: a step that was not recorded is computed again, from the states before.
SPARSE: dict[str, Any] = CASES["qwen3_5_moe_text"]
# Beyond the first tokens an index chooses positions.
INDEXED: dict[str, Any] = {**CASES["deepseek_v32-all"], "index_topk": 4}
FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),  # of heads that the ops in C do not take: free steps again
    ("llama", {"head_dim": 32}),
    ("qwen3", {"head_dim": 16}),
    ("gemma2", {"head_dim": 16}),
    ("mistral", {"sliding_window": 6, "head_dim": 16}),
    ("qwen3_5_text", DELTA),
    ("mamba2", SPACE),
    ("lfm2", CONV),
    ("qwen3_5_moe_text", SPARSE),
    ("deepseek_v32", INDEXED),
]
DRAWN = SamplingParams(temperature=0.9, top_k=20, seed=7, num_top_logprobs=3)


class Wordy(Drafter):
    """Drafts the same token as often as it may."""

    def draft(self, spans: Many[Span], wanted: Mapping[int, int]) -> Drafts:
        return {slot: (5,) * most for slot, most in wanted.items()}


def fixed(folder: Any, sizes: tuple[int, ...], **options: Any) -> Engine:
    return make_engine(folder, cuda=CudaConfig(sizes), is_poisoned=True, **options)


def sequences() -> list[Sequence]:
    """Sequences with different lengths and ends, so that every number of rows occurs."""
    kinds = [
        SamplingParams(),
        DRAWN,
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(prompt_logprobs=True),
    ]
    return [
        Sequence([3 + number, 5, 9, 2][: 1 + number % 4], 4 + 2 * number, kinds[number % 4])
        for number in range(6)
    ]


@pytest.mark.parametrize(("family", "options"), FAMILIES)
@pytest.mark.parametrize("sizes", [(1, 2, 4, 8), (3,), (8,)])
def test_tokens_are_those_of_free_steps(
    saved_model: Callable[..., Any], family: str, options: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    folder = saved_model(**{"family": family, **options}).folder
    free = Driver(execute_on(make_engine(folder, cuda=CudaConfig(())))).run(sequences(), seed=5)
    padded = Driver(execute_on(fixed(folder, sizes))).run(sequences(), seed=5)
    for one, other in zip(free, padded, strict=True):
        assert other.output == one.output
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-4)
        assert other.prompt_logprobs == pytest.approx(one.prompt_logprobs, abs=1e-4)
        assert [ids for ids, _ in other.tops] == [ids for ids, _ in one.tops]


@pytest.mark.parametrize(
    ("options", "is_recorded"),
    [
        ({"family": "llama", "head_dim": 16}, True),
        ({"family": "gemma2", "head_dim": 16}, True),
        ({"family": "qwen3", "head_dim": 16}, True),
        ({"family": "llama", "head_dim": 18}, False),
        ({"family": "mixtral", "head_dim": 16}, True),
        (DELTA, True),
        (SPACE, True),
        (CONV, True),
        ({**INDEXED, "index_topk": 2}, True),
        (SPARSE, False),
    ],
)
def test_on_a_cpu_the_second_step_of_a_size_is_a_recording(
    saved_model: Callable[..., Any],
    options: dict[str, Any],
    is_recorded: bool,
) -> None:
    engine = make_engine(saved_model(**options).folder)
    execute = execute_on(engine)
    admitted = [Admit(slot, [1, 2], 2, [slot], SamplingParams()) for slot in range(3)]
    execute(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, 2) for slot in range(3)]))
    execute(Plan(1, 2, spans=[Span(slot, 2, 1) for slot in range(3)]))
    computed: list[Any] = []
    model: Any = engine.model
    model.register_forward_pre_hook(lambda model, arguments: computed.append(arguments))
    assert len(execute(Plan(1, 3, spans=[Span(slot, 3, 1) for slot in range(3)])).sampled_slots) == 3
    assert len(computed) == (0 if is_recorded else 1)
    assert engine.graphs is not None
    assert engine.graphs.size_for([Span(0, 3, 1)]) == (1 if is_recorded else None), "else steps run free"


@pytest.mark.parametrize(
    ("options", "dtype"), [({"head_dim": 16}, "float32"), ({"head_dim": 16}, "bfloat16"), (DELTA, "float32")]
)
def test_on_a_cpu_steps_of_many_rows_are_recordings(
    saved_model: Callable[..., Any], options: dict[str, Any], dtype: str
) -> None:
    folder = saved_model(**options).folder
    many = [sequence for _ in range(12) for sequence in sequences()]
    room = {"num_slots": len(many), "num_blocks": 8 * len(many)}
    engines = [
        make_engine(folder, dtype=dtype, **room, **cuda)
        for cuda in ({"cuda": CudaConfig(())}, dict[str, Any]())
    ]
    free, recorded = (Driver(execute_on(engine), **room).run(deepcopy(many)) for engine in engines)
    assert [one.output for one in free] == [one.output for one in recorded]
    graphs = engines[1].graphs
    assert graphs is not None
    assert max(kind.size for kind in graphs._replays) > 32


def test_on_a_cpu_a_step_with_drafts_is_a_recording_of_a_row_for_each(
    saved_model: Callable[..., Any],
) -> None:
    engine = make_engine(saved_model(head_dim=16).folder, num_slots=2, max_sequence_len=32)
    assert engine.graphs is not None
    engine.drafter = Wordy()
    admitted = [
        Admit(slot, [1, 2], 2, list(range(8 * slot, 8 * slot + 8)), SamplingParams()) for slot in range(2)
    ]
    engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, 2) for slot in range(2)])).resolve()
    computed: list[Any] = []
    model: Any = engine.model
    model.register_forward_pre_hook(lambda model, arguments: computed.append(arguments))
    for step in range(2, 5):
        spans = [Span(slot, 20, 1) for slot in range(2)]
        outcome = engine.launch(Plan(1, step, spans=spans, open_drafts={0: 8, 1: 1})).resolve()
        assert outcome.num_drafted == {0: 8, 1: 1}
    # Nine rows of the first slot are a span of eight and one of one.
    assert len(computed) == 1
    assert computed[0][0].spans.query_starts.tolist()[:5] == [0, 8, 9, 11, 11]


def test_the_smallest_size_that_fits_is_taken(saved_model: Callable[..., Any]) -> None:
    engine = fixed(saved_model(head_dim=16).folder, (1, 4, 8))
    assert engine.graphs is not None
    for slot in range(8):
        engine.slots.apply(Plan(1, 1, admitted=[Admit(slot, [1, 2], 2, [slot], SamplingParams())]))
    spans = [Span(slot, 1, 1) for slot in range(8)]
    assert [engine.graphs.size_for(spans[:count]) for count in (1, 2, 4, 5, 8)] == [1, 4, 4, 8, 8]
    assert engine.graphs.size_for([Span(0, 0, 2)]) is None


def test_more_rows_than_the_largest_size_and_prompts_run_free(saved_model: Callable[..., Any]) -> None:
    engine = fixed(saved_model(head_dim=16).folder, (2,))
    assert engine.graphs is not None
    reading = SamplingParams(prompt_logprobs=True)
    plan = Plan(1, 1, admitted=[Admit(slot, [1, 2], 2, [slot], reading) for slot in range(3)])
    engine.slots.apply(plan)
    assert engine.graphs.size_for([Span(slot, 1, 1) for slot in range(3)]) is None
    assert engine.graphs.size_for([Span(0, 0, 1)]) is None, "its prompt is to be told"
    assert engine.graphs.size_for([Span(0, 1, 1)]) == 2


def test_a_step_of_which_no_row_gets_a_token_gives_none(saved_model: Callable[..., Any]) -> None:
    execute = execute_on(fixed(saved_model(head_dim=16).folder, (2,)))
    admitted = [Admit(0, [1, 2, 3], 3, [1], SamplingParams())]
    assert execute(Plan(1, 1, admitted=admitted, spans=[Span(0, 0, 1)])).sampled_slots == []
    assert execute(Plan(1, 2, spans=[Span(0, 1, 1)])).sampled_slots == []
    assert execute(Plan(1, 3, spans=[Span(0, 2, 1)])).sampled_slots == [0]


def test_what_pads_a_step_writes_into_no_block_of_the_pool(saved_model: Callable[..., Any]) -> None:
    engine = fixed(saved_model(head_dim=16).folder, (8,), num_blocks=4)
    execute = execute_on(engine)
    execute(Plan(1, 1, admitted=[Admit(0, [1, 2, 3], 3, [2], SamplingParams())], spans=[Span(0, 0, 3)]))
    execute(Plan(1, 2, spans=[Span(0, 3, 1)]))
    written = engine.cache.pools[0].isfinite().flatten(4).all(-1)[0, 0]
    assert written[1:].tolist() == [  # the warm-up has used the first
        [False] * 4,
        [True] * 4,
        [False] * 4,
        [True, False, False, False],  # the spare block
    ]


def test_the_largest_plan_is_legal_and_as_large_as_a_step_may_be(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model().folder, max_step_tokens=30, num_slots=8, num_blocks=64)
    outcome = engine.launch(largest_plan(engine.slots.limits)).resolve()
    assert outcome.errors == []
    assert outcome.sampled_slots == list(range(8))
    assert sum(span.length for span in largest_plan(engine.slots.limits).spans) == 30
