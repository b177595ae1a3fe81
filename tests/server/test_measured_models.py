"""Models in the sizes in which `benchmarks/gpu` measures them, on a GPU that is not there: nothing is compiled after
the start, and `make test` compiles what they launch."""

from pathlib import Path
from typing import Any

import pytest
from driver import Driver, Sequence, execute_on
from fake_gpu import FakeGpu
from penstock_server.base.config import CudaConfig
from penstock_server.engine.sampling_params import SamplingParams

from benchmarks.gpu.models import MODELS, write_folder

pytest.importorskip("triton")

# The first layer and one behind another: more launch the same kernels again.
NUM_LAYERS = 2
SIZES: dict[str, Any] = {
    "num_slots": 12,
    "num_blocks": 100,
    "block_size": 16,
    "max_sequence_len": 512,
    "max_step_tokens": 512,
    "load_format": "dummy",
    "generation_config": "none",
    "cuda": CudaConfig((1, 8), prompt_graph_sizes=(64,)),
}
KINDS = [SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, num_top_logprobs=3)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    for name, config in MODELS.items():
        monkeypatch.setitem(MODELS, name, {**config, "num_hidden_layers": NUM_LAYERS})
    return FakeGpu(monkeypatch)


def serve(gpu: FakeGpu, name: str, folder: Path, **options: Any) -> None:
    """Prompts of the lengths of every kind of kernel, in graphs and free, preempted."""
    write_folder(name, folder)
    with gpu.on():
        engine = gpu.engine(folder, is_compiled=True, **SIZES | options)
        prompts = [Sequence([5] * length, 3, KINDS[length % 2]) for length in (1, 9, 60, 300)]
        Driver(execute_on(engine), num_slots=12, num_blocks=50).run(prompts, seed=3)
    gpu.check_variants()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("llama-3.1-8b", {}),
        ("llama-3.1-8b", {"kv_cache_dtype": "fp8"}),
        ("qwen3-0.6b", {}),
        ("mixtral-like", {}),
    ],
    ids=str,
)
def test_a_model_that_is_measured_needs_no_new_variant(
    name: str, options: dict[str, Any], gpu: FakeGpu, tmp_path: Path
) -> None:
    serve(gpu, name, tmp_path, **options)


def test_descriptors_of_the_cache_are_captured(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As arguments of launches, with no memory but the cache's, and none of them new."""
    monkeypatch.setattr("penstock_kernels.gpu.cache_descriptors.MEASURED_FASTER", {"none"})
    serve(gpu, "llama-3.1-8b", tmp_path, block_size=128, num_blocks=60)
    prompts = [variant for variant in gpu.launched if variant.kernel == "_prefill_attention_kernel"]
    kinds = {dict(variant.signature)["key_descriptor"] for variant in prompts}
    assert kinds == {"tensordesc<bf16[1, 1, 64, 128]>"}
