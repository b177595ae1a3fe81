"""A whole shard on the kernels: the tokens are those without kernels, in free steps and in steps of fixed sizes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Sequence, execute_on, make_engine
from family_models import LATENT
from penstock_server.base.config import CudaConfig
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.states import States
from refused_waits import waits_refused

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_DELTA = {
    "hidden_size": 80, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 10,
    "linear_value_head_dim": 6, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
# The interpreter takes seconds for a layer, and as long for each head.
_SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
# Norms of queries and keys on the way into the cache are the second's, windows the third's; then latents, and states.
# Heads of two sizes, and two layers that read the keys and values of the two before them.
_UNLIKE_LAYERS: dict[str, Any] = {
    "num_hidden_layers": 4, "layer_types": 2 * ["sliding_attention", "full_attention"], "sliding_window": 6,
    "num_kv_shared_layers": 2, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 301,
}  # fmt: skip
# An index chooses three positions.
_INDEXED: dict[str, Any] = {
    **LATENT, "num_attention_heads": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "index_n_heads": 2, "index_head_dim": 24, "index_topk": 3,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any], CudaConfig]] = [
    ("llama", {}, CudaConfig((1, 4))),
    ("llama", {}, CudaConfig((1,), prompt_graph_sizes=(3, 9))),
    ("qwen3", {}, CudaConfig(())),
    ("mistral", {"sliding_window": 6}, CudaConfig((2,), prompt_graph_sizes=(6,))),
    ("youtu", {**LATENT, "num_attention_heads": 8}, CudaConfig((2,), prompt_graph_sizes=(6,))),
    ("deepseek_v32", _INDEXED, CudaConfig((2,), prompt_graph_sizes=(6,))),
    ("qwen3_5_text", _DELTA, CudaConfig((2,))),
    ("gemma4_text", _UNLIKE_LAYERS, CudaConfig((2,), prompt_graph_sizes=(6,))),
]
# The op that rotates also writes the cache; gpt2 does not rotate, and has a write of its own.
FP8_CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("llama", {}, (2,)),
    ("gpt2", {"head_dim": None, "num_key_value_heads": None}, ()),
]


def sequences() -> list[Sequence]:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0.8, top_k=9, seed=3),
        SamplingParams(presence_penalty=0.7),
    ]
    return [Sequence([3 + number, 5, 9][: 1 + number], 5, kinds[number]) for number in range(3)]


@pytest.fixture
def outputs(exempt_from_races: Callable[[torch.Tensor], None]) -> Callable[..., list[Sequence]]:
    """A function that returns the outputs of an engine for `sequences`."""

    def run(folder: Path, is_joined: bool = False, **options: Any) -> list[Sequence]:
        engine = make_engine(folder, dtype="float32", is_poisoned=True, **options)
        if is_joined:
            _join_weights(engine.model)
        for (
            layer
        ) in engine.cache.layers:  # the rows that pad a step all write the spare block, which is the last
            exempt_from_races(layer.key[-1])
            exempt_from_races(layer.value[-1])
        states = engine.cache.states
        for state in states.layers if isinstance(states, States) else ():  # and the spare row
            exempt_from_races(state.conv[engine.slots.rows.spare])
            exempt_from_races(state.matrices[engine.slots.rows.spare])
        return Driver(execute_on(engine)).run(sequences(), seed=2)

    return run


def _join_weights(model: Any) -> None:
    """Joins weights as a GPU has them; on a CPU, a weight of several tensors may stay in its files."""
    for module in model.modules():
        if isinstance(getattr(module, "weight", None), tuple):
            module.weight = torch.cat(module.weight)


@pytest.fixture
def without_kernels(
    outputs: Callable[..., list[Sequence]], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Sequence]]:
    """A function that returns the outputs of the CPU without kernels."""

    def run(folder: Path, **options: Any) -> list[Sequence]:
        with monkeypatch.context() as patch:
            patch.setattr("penstock_kernels.base.devices.INTERPRETS", False)
            return outputs(folder, device="cpu", **options)

    return run


@pytest.mark.parametrize(("family", "options", "cuda"), CASES)
def test_tokens_are_those_without_kernels(
    saved_model: Callable[..., Any],
    outputs: Callable[..., list[Sequence]],
    without_kernels: Callable[..., list[Sequence]],
    family: str,
    options: dict[str, Any],
    cuda: CudaConfig,
) -> None:
    folder = saved_model(family, **{**_SMALL, **options}).folder
    found = outputs(folder, device=DEVICE, cuda=cuda)
    for one, other in zip(without_kernels(folder), found, strict=True):
        assert other.output == one.output
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


def test_tokens_with_fused_products_are_those_without_kernels(
    saved_model: Callable[..., Any],
    outputs: Callable[..., list[Sequence]],
    without_kernels: Callable[..., list[Sequence]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fused products are used as if they had been measured to be faster, for every shape."""
    folder = saved_model("llama", **_SMALL).folder
    expected = without_kernels(folder)
    num_rows: set[int] = set()

    def is_faster(x: torch.Tensor, _weight: torch.Tensor) -> bool:
        num_rows.add(len(x))
        return len(x) <= 16

    monkeypatch.setattr("penstock_kernels.gpu.fused_linear.is_faster", is_faster)
    found = outputs(folder, is_joined=True, device=DEVICE, cuda=CudaConfig((2,)))
    assert num_rows & set(range(1, 17)), "some products had few rows"
    for one, other in zip(expected, found, strict=True):
        assert other.output == one.output
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)


@pytest.mark.parametrize(("family", "options", "sizes"), FP8_CASES)
def test_tokens_over_a_cache_of_eight_bits_are_those_without_kernels(
    saved_model: Callable[..., Any],
    outputs: Callable[..., list[Sequence]],
    without_kernels: Callable[..., list[Sequence]],
    family: str,
    options: dict[str, Any],
    sizes: tuple[int, ...],
) -> None:
    folder = saved_model(family, **{**_SMALL, **options}).folder
    found = outputs(folder, device=DEVICE, cuda=CudaConfig(sizes), kv_cache_dtype="fp8")
    for one, other in zip(without_kernels(folder, kv_cache_dtype="fp8"), found, strict=True):
        assert other.output == one.output
        # A number at the border between two that 8 bits can hold may fall to either side.
        assert other.logprobs == pytest.approx(one.logprobs, abs=2e-2)


def test_a_token_does_not_depend_on_the_others(saved_model: Callable[..., Any]) -> None:
    folder = saved_model("llama", **_SMALL).folder
    engine = make_engine(folder, dtype="float32", device=DEVICE, batch_invariant=True)
    together = Driver(execute_on(engine)).run(sequences())
    engine.clear()
    [alone] = Driver(execute_on(engine)).run(sequences()[1:2])
    assert alone.output == together[1].output
    assert alone.logprobs == together[1].logprobs


@pytest.mark.skipif(DEVICE != "cuda", reason="only there a host can wait for a device")
@pytest.mark.parametrize(
    "params", [SamplingParams(), SamplingParams(temperature=0.7, top_p=0.8, num_top_logprobs=2)]
)
def test_the_host_waits_for_nothing_but_results(
    saved_model: Callable[..., Any], params: SamplingParams
) -> None:
    engine = make_engine(saved_model("llama").folder, device=DEVICE)
    pending = []
    admitted = [Admit(slot, [5, 6, 7], 3, [4 * slot, 4 * slot + 1], params) for slot in range(3)]
    pending.append(
        engine.launch(Plan(1, 1, admitted=admitted, spans=[Span(slot, 0, 3) for slot in range(3)]))
    )
    for step in range(2, 6):
        spans = [Span(slot, step + 1, 1) for slot in range(3)]
        with waits_refused(f"step {step} of {params}"):
            pending.append(engine.launch(Plan(1, step, spans=spans)))
    assert all(len(step.resolve().sampled_ids) == 3 for step in pending)
