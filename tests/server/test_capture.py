"""Whole steps on a GPU that is not there: the host waits for nothing, and graphs own what they use.

`fake_gpu` says what is real in it.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import family_models
import pytest
import torch
from driver import Driver, Sequence, engine_config, execute_on
from fake_gpu import FakeGpu
from lone_rank import LoneRank
from penstock_kernels import AdapterWeights, Peers
from penstock_kernels.base import adapter_table
from penstock_kernels.base.adapter_table import NUM_WORDS
from penstock_server.base.config import CudaConfig, GroupConfig
from penstock_server.engine.constrained_slot import ConstrainedSlot
from penstock_server.engine.decode_graphs import Kind
from penstock_server.engine.plan import Admit, Grammar, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.step_clock import StepClock
from penstock_server.load import cuda_memory, load_engine, sizes
from penstock_server.network import distributed
from penstock_server.network.adapters import ROOM_IN_GRAPHS, HostAdapter
from penstock_server.network.decoder import Decoder
from penstock_server.network.distributed import Group
from watched_ops import Refused

pytest.importorskip("triton")

# Every kind of layer at least once.
FAMILIES = [
    "llama", "mistral-window", "qwen3_moe", "qwen2_moe", "gemma2", "falcon-7b", "gpt2", "olmo2", "cohere-normed",
    "gpt_oss", "llama4_text", "phi3-partial-longrope", "qwen3_next", "granitemoehybrid", "falcon_mamba", "lfm2",
    "deepseek_v3", "bloom-six-heads", "falcon-rw", "gemma4_text", "gemma4_text-experts", "dbrx", "phimoe", "nanochat",
]  # fmt: skip
SIZES = CudaConfig((1, 2, 4), prompt_graph_sizes=(8, 20))
KINDS = [
    SamplingParams(),
    SamplingParams(temperature=0.9, top_k=20, top_p=0.9, seed=7, num_top_logprobs=3),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.2, prompt_logprobs=True, num_top_logprobs=1),
    SamplingParams(logit_bias_ids=(3,), logit_bias_values=(-1.0,), min_new_tokens=2, suppressed_ids=(2,)),
    SamplingParams(banned_ids=(4, 5), banned_lens=(2,), allowed_mask=b"\xff" * 38),
    SamplingParams(watermark_delta=1.0, watermark_gamma=0.5),
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def sequences(kinds: list[SamplingParams], **options: Any) -> list[Sequence]:
    return [
        Sequence([3 + number, 5, 9, 2, 8, 8, 1, 4, 4, 4, 6][: 3 + 2 * number], 4, kind, **options)
        for number, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_no_step_waits_for_the_device(saved_model: Callable[..., Any], gpu: FakeGpu, name: str) -> None:
    """Prompts, mixed steps and decodes, in graphs and free, preempted and computed again."""
    folder = saved_model(**family_models.CASES[name]).folder
    with gpu.on():
        engine = gpu.engine(folder, is_compiled=True, cuda=SIZES, dtype="bfloat16")
        assert engine.graphs is not None, "decodes are in graphs"
        has_states = engine.model.state_shape is not None
        assert (engine.prompt_graphs is None) == has_states, "so are prompts, but where states are kept"
        Driver(execute_on(engine)).run(sequences(KINDS[:3]), seed=3)
    assert gpu.ops.num_launches > 100
    gpu.check_variants()


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_mamba"])
def test_a_snapshot_waits_for_nothing(saved_model: Callable[..., Any], gpu: FakeGpu, name: str) -> None:
    """Nor is its copy compiled when it is made."""
    folder = saved_model(**family_models.CASES[name]).folder
    with gpu.on():
        engine = gpu.engine(folder, is_compiled=True, cuda=SIZES, dtype="bfloat16", num_snapshots=2)
        first = Admit(0, [5] * 8, 8, [0, 1, 2], SamplingParams())
        other = Admit(1, [5] * 8, 8, [0, 3, 4], SamplingParams(), snapshot=1)
        engine.launch(Plan(1, 1, admitted=[first], spans=[Span(0, 0, 4)], snapshots={0: 1})).resolve()
        engine.launch(Plan(1, 2, admitted=[other], spans=[Span(1, 4, 4)])).resolve()
    gpu.check_variants()


def _fake_peers(group: Group, device: torch.device, row_bytes: int) -> None:
    """Fake memory has no addresses."""
    pages = tuple(torch.zeros(2, Peers.page_bytes(2, 3, row_bytes), dtype=torch.uint8, device=device))
    numbers = (torch.zeros(count, dtype=torch.int64, device=device) for count in (2, 3))
    group.reach(Peers(group.rank, 3, row_bytes, pages, *numbers), None)


@pytest.mark.parametrize(
    ("name", "has_peers"), [("llama", False), ("llama", True), ("qwen3_moe", True), ("olmo2", False)]
)
def test_no_rank_of_two_waits_for_its_device(
    saved_model: Callable[..., Any],
    gpu: FakeGpu,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    has_peers: bool,
) -> None:
    monkeypatch.setattr(distributed, "connect", lambda *_: LoneRank().connections())
    # Fake tensors have no numbers, those of the host neither: the other rank's are this rank's.
    monkeypatch.setattr(distributed.Group, "gather_numbers", lambda group, *numbers: [numbers] * group.size)
    monkeypatch.setattr(load_engine, "meet_peers", _fake_peers if has_peers else lambda *_: None)
    folder = saved_model(**family_models.CASES[name]).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES, dtype="bfloat16", group=GroupConfig(0, 2, folder))
        Driver(execute_on(engine)).run(sequences(KINDS[:3]), seed=3)


@pytest.mark.parametrize("kinds", [KINDS[4:], [KINDS[1]], [KINDS[0]]])
def test_no_sampler_waits_for_the_device(
    saved_model: Callable[..., Any], gpu: FakeGpu, kinds: list[SamplingParams]
) -> None:
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        Driver(execute_on(gpu.engine(folder, cuda=SIZES))).run(sequences(kinds))


def test_a_step_with_adapters_waits_for_nothing(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More adapters than numbers, so that they come and go. Fake memory has no address."""
    monkeypatch.setattr(adapter_table, "_words", lambda _weights: [0] * NUM_WORDS)
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES, dtype="bfloat16", max_adapters=2)
        graphs, adapters = engine.graphs, engine.slots.adapters
        assert graphs is not None
        captured = dict(graphs._replays)
        assert captured.keys() == {Kind(size, uses) for size in (1, 2, 4) for uses in (True, False)}
        replayed: list[bool] = []
        run = graphs.run

        def watched(decode: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
            replayed.append(len(decode) == 3)
            return run(decode, *given, **options)

        monkeypatch.setattr(graphs, "run", watched)
        Driver(execute_on(engine)).run(sequences(KINDS[:2]))
        assert replayed, "in graphs"
        assert not any(replayed)
        for name, rank in zip("abc", (4, 4, ROOM_IN_GRAPHS + 1), strict=True):
            matrices = (torch.zeros(rank, count, dtype=torch.bfloat16) for count in (72, 8 * 64 * 2))
            first = torch.zeros(8 * 64 * 2, dtype=torch.int32)
            weights = AdapterWeights(*(it.pin_memory() for it in (*matrices, first)))
            adapters._loaded[name] = HostAdapter(name, {0: weights}, rank, (5, 9), None, {}, {})
        for names in ("ab", "ca", "bc", "ab"):
            replayed.clear()
            using = [
                replace(sequence, adapter_id=name)
                for name, sequence in zip(names, sequences(KINDS[:2]), strict=True)
            ]
            Driver(execute_on(engine)).run(using, seed=4)
            assert any(replayed) == ("c" not in names), "c has more ranks than a graph"
        assert len(graphs._replays) == len(captured), "nothing is recorded later"


def test_a_step_with_grammars_waits_for_nothing(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their masks are there at once: fake memory has no address that threads could write them to."""
    monkeypatch.setattr(ConstrainedSlot, "_build", lambda *_: "")
    monkeypatch.setattr(ConstrainedSlot, "_consume", lambda *_: "")
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES)
        free, constrained = sequences(KINDS[:1]), sequences(KINDS[:2], grammar=Grammar("regex", "[0-9]+"))
        Driver(execute_on(engine)).run([*free, *constrained], seed=5)
    assert all(len(sequence.output) == 4 for sequence in [*free, *constrained])


@pytest.mark.parametrize(
    "options",
    [{"batch_invariant": True}, {"kv_cache_dtype": "fp8"}, {"num_blocks": None}, {"is_poisoned": True}],
)
def test_options_of_a_gpu_wait_for_nothing(
    saved_model: Callable[..., Any], gpu: FakeGpu, options: dict[str, Any]
) -> None:
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES, dtype="bfloat16", **options)
        Driver(execute_on(engine)).run(sequences(KINDS[:2]))


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_shard_stays_within_its_share_of_the_memory(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, batch_invariant: bool
) -> None:
    """The cache takes what the plan leaves, and then the largest step is computed beside graphs of long sequences."""
    monkeypatch.setattr(cuda_memory, "_MARGIN_BYTES", 64 * 1024)
    folder = saved_model(head_dim=64, max_position_embeddings=20_000).folder
    memory = gpu.ops.memory
    memory.is_counting, memory.total = True, 192 * 1024**2
    sizes: dict[str, Any] = {"num_blocks": None, "num_slots": 16, "max_step_tokens": 512}
    cuda = CudaConfig((16,), prompt_graph_sizes=(96,))
    with gpu.on():
        engine = gpu.engine(folder, cuda=cuda, batch_invariant=batch_invariant, **sizes)
        limits = engine.slots.limits
        assert limits.num_blocks < limits.num_slots * limits.max_blocks, "it takes all that is left"
        engine.launch(cuda_memory.largest_plan(limits)).resolve()
    assert 0.85 * memory.total < memory.peak <= 0.9 * memory.total


def test_graphs_of_many_rows_stay_within_the_memory(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the logits of the largest, which stay, it computes them once in its own type and once in float32."""
    monkeypatch.setattr(cuda_memory, "_MARGIN_BYTES", 64 * 1024)
    folder = saved_model(head_dim=64, vocab_size=80_000, max_position_embeddings=20_000).folder
    memory = gpu.ops.memory
    memory.is_counting, memory.total = True, 1024**3
    limits: dict[str, Any] = {"num_blocks": None, "num_slots": 150, "max_step_tokens": 2048}
    with gpu.on():
        engine = gpu.engine(
            folder, cuda=CudaConfig((150,), prompt_graph_sizes=()), dtype="bfloat16", **limits
        )
        engine.launch(cuda_memory.largest_plan(engine.slots.limits)).resolve()
    assert 0.85 * memory.total < memory.peak <= 0.9 * memory.total


@pytest.mark.parametrize(("num_slots", "last"), [(6, (4, 6)), (256, (224, 256)), (300, (256, 300)),
                                                 (700, (640, 700)), (4000, (896, 1024))])  # fmt: skip
def test_every_number_of_decodes_has_a_graph(
    saved_model: Callable[..., Any], gpu: FakeGpu, num_slots: int, last: tuple[int, int]
) -> None:
    loaded = SimpleNamespace(
        config=engine_config(saved_model(head_dim=64).folder, num_slots=num_slots),
        device=torch.device("cuda"),
    )
    chosen = sizes._decode_graph_sizes(loaded)  # type: ignore[arg-type]
    assert chosen[-2:] == last
    assert list(chosen) == sorted(set(chosen))
    assert all(size <= 1.25 * before for before, size in pairwise(chosen) if before >= 256)


@pytest.mark.parametrize(("num_bytes", "of_ranks", "largest", "prompts"), [
    (9 << 20, [1 << 20], 128, 256),
    (219 << 20, [1 << 20], 74, 72),
    (219 << 20, [40], 40, 40),
    (16 << 30, [1 << 20], 32, 0),
])  # fmt: skip
def test_on_a_cpu_larger_steps_of_small_models_are_recorded(
    num_bytes: int, of_ranks: list[int], largest: int, prompts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks record the same sizes."""
    group = SimpleNamespace(gather_numbers=lambda *mine: [mine, *((number,) for number in of_ranks)])
    loaded = SimpleNamespace(
        config=SimpleNamespace(cuda=CudaConfig(), cache=SimpleNamespace(num_slots=8)),
        device=torch.device("cpu"),
        group=group,
        model=SimpleNamespace(state_shape=None),
        ranks=SimpleNamespace(stage=SimpleNamespace(count=1)),
        attention=SimpleNamespace(captures_prompts=True),
    )
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(sizes, "bytes_of", lambda _model: num_bytes)
    monkeypatch.setattr(sizes, "wanted_limits", lambda _loaded: SimpleNamespace(max_step_tokens=2048))
    chosen = sizes._decode_graph_sizes(loaded), sizes._prompt_graph_sizes(loaded)  # type: ignore[arg-type]
    assert chosen == (tuple(range(1, largest + 1)), tuple(range(8, prompts + 1, 8)))
    loaded.attention.captures_prompts = False
    assert sizes._prompt_graph_sizes(loaded) == ()  # type: ignore[arg-type]


def _reads_a_number(x: torch.Tensor) -> None:
    x[0, 0].item()


def _reads_numbers(x: torch.Tensor) -> None:
    x[0].tolist()


def _asks(x: torch.Tensor) -> None:
    assert (x == x).all()


def _picks_by_mask(x: torch.Tensor) -> None:
    x[x[:, 0] > 0]


def _writes_by_mask(x: torch.Tensor) -> None:
    x[x[:, 0] > 0] = x.new_zeros(())


def _fetches(x: torch.Tensor) -> None:
    x.cpu()


def _uploads_a_list(x: torch.Tensor) -> None:
    torch.tensor([1, 2], device=x.device)


def _uploads_what_is_not_pinned(x: torch.Tensor) -> None:
    torch.zeros(3).to(x.device, non_blocking=True)


def _fetches_into_memory_that_is_not_pinned(x: torch.Tensor) -> None:
    torch.zeros_like(x, device="cpu").copy_(x, non_blocking=True)


def _synchronizes(x: torch.Tensor) -> None:
    torch.cuda.synchronize(x.device)


def _uploads_well(x: torch.Tensor) -> None:
    torch.zeros(3).pin_memory().to(x.device, non_blocking=True)


WAITS = [
    (_reads_a_number, "_local_scalar_dense waits"),
    (_reads_numbers, "_local_scalar_dense waits"),
    (_asks, "_local_scalar_dense waits"),
    (_picks_by_mask, "index waits"),
    (_writes_by_mask, "index_put_ waits"),
    (_fetches, "_to_copy copies between host and device"),
    (_uploads_a_list, "_to_copy copies between host and device"),
    (_uploads_what_is_not_pinned, "_to_copy copies between host and device"),
    (_fetches_into_memory_that_is_not_pinned, "copy_ copies between host and device"),
    (_synchronizes, "the host waits for the device"),
]


def plant(monkeypatch: pytest.MonkeyPatch, op: Callable[[torch.Tensor], Any]) -> None:
    """The model does something more."""
    plain = Decoder.logits

    def logits(self: Decoder, hidden: torch.Tensor, *adapters: Any) -> torch.Tensor:
        op(hidden)
        return plain(self, hidden, *adapters)

    monkeypatch.setattr(Decoder, "logits", logits)


def test_a_wait_in_a_step_is_found(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=CudaConfig(()))
        for op, said in WAITS:
            with monkeypatch.context() as patch:
                plant(patch, op)
                with pytest.raises(Refused, match=said) as refused:
                    Driver(execute_on(engine)).run(sequences(KINDS[:1]))
            assert f"in {op.__name__}: " in str(refused.value), "the line is named"
            engine.clear()
        Driver(execute_on(engine)).run(sequences(KINDS[:1]))


@pytest.mark.parametrize(
    ("op", "said"),
    [WAITS[0], WAITS[4], WAITS[5], (_uploads_well, "pinned in a graph|between host and device in a graph")],
)
def test_a_wait_or_a_copy_in_a_graph_is_found(
    saved_model: Callable[..., Any],
    gpu: FakeGpu,
    monkeypatch: pytest.MonkeyPatch,
    op: Callable[[torch.Tensor], None],
    said: str,
) -> None:
    folder = saved_model(head_dim=64).folder
    plant(monkeypatch, _only_in_graphs(gpu, op))
    with gpu.on(), pytest.raises(Refused, match=said):
        gpu.engine(folder, cuda=SIZES)


def _only_in_graphs(gpu: FakeGpu, op: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    return lambda x: op(x) if gpu.ops.is_capturing else None


def test_an_input_of_a_graph_that_does_not_stay_is_found(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(head_dim=64).folder
    given: list[torch.Tensor] = []
    plant(monkeypatch, _only_in_graphs(gpu, lambda x: x.add_(given[-1])))
    with gpu.on():
        given.append(torch.zeros((), device="cuda"))
        engine = gpu.engine(folder, cuda=SIZES)
        given.clear()
        with pytest.raises(Refused, match="memory that was given back"):
            Driver(execute_on(engine)).run(sequences(KINDS[:1]))


def test_a_result_of_a_graph_that_other_graphs_overwrite_is_found(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(head_dim=64).folder
    made: list[torch.Tensor] = []
    plant(monkeypatch, _only_in_graphs(gpu, lambda x: made.append(x * 2)))
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES)
        plant(monkeypatch, lambda _x: made[0] + 1)
        with pytest.raises(Refused, match="what a captured op made"):
            Driver(execute_on(engine)).run(sequences(KINDS[:1]))


def test_a_result_that_is_read_too_early_is_found(
    saved_model: Callable[..., Any], gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved_model(head_dim=64).folder
    with gpu.on():
        engine = gpu.engine(folder, cuda=SIZES)
        monkeypatch.setattr(StepClock, "wait", lambda _clock: None)
        with pytest.raises(Refused, match="read before its copy is waited for"):
            Driver(execute_on(engine)).run(sequences(KINDS[:1]))
