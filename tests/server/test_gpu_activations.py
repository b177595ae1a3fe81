"""`--gpu-activations 8bit`: the tokens of a model whose inputs are rounded to 8 bits, by the reference on a CPU; no new
variant of a kernel after the warm-up; else refused.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from driver import Driver, Sequence, engine_config, execute_on, make_engine
from penstock_kernels import Float8Grid
from penstock_kernels.base.quantized import rounding_on_gpu, rounds_inputs
from penstock_kernels.reference.quantized_linear import round_inputs
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from penstock_server.load import read_model
from penstock_server.load.activations import check_activations, rounding_of
from penstock_server.network.quantization.rounded_inputs import NOT_ROUNDED, OnGpu
from quantized_checks import prompts, rounding_inputs
from quantized_models import Quantized, healthy, quantize
from test_quantization_awq_gptq import AWQ
from test_quantization_awq_gptq import awq as awq_packer
from test_quantization_float8 import packed, settings
from thread_ranks import engines, execute_on_all

BLOCK = 32
CUDA = torch.device("cuda")


@pytest.fixture(scope="module")
def blocks(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """Floats of 8 bits, in blocks of 32."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("rounded") / "model"
    packer = packed(BLOCK, BLOCK, "weight_scale_inv")
    return quantize(healthy(saved_model), folder, packer, settings(weight_block_size=[BLOCK, BLOCK]))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are rounded as on a GPU."""
    monkeypatch.setattr(read_model, "rounding_of", lambda *_: OnGpu())


def _rounded(x: torch.Tensor, size: int, begin: int) -> torch.Tensor:
    codes = torch.empty(0, size, dtype=torch.float8_e4m3fn)
    whole = Float8Grid(codes, torch.empty(0, -(-size // BLOCK)), BLOCK, BLOCK)
    matrix = rounding_on_gpu(whole.columns(begin, begin + x.shape[1]))
    assert rounds_inputs(matrix)
    return round_inputs(x, matrix)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("on_gpu")
def test_answers_are_those_of_rounded_inputs(
    size: int, blocks: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts(8)
    plain = [oracle.greedy(blocks.oracle, prompt, 1)[1][0] for prompt in given]
    with rounding_inputs(blocks.oracle, size, _rounded):
        rounded = [oracle.greedy(blocks.oracle, prompt, 1)[1][0] for prompt in given]
    with engines(blocks.folder, size, monkeypatch) as ranks:
        found = [
            sequence.logprobs[0]
            for sequence in Driver(execute_on_all(ranks)).run([Sequence(prompt, 1) for prompt in given])
        ]
    # Inputs that differ in their last bits may still be rounded to different codes: then an answer moves, a little.
    close = [abs(here - there) < 1e-4 for here, there in zip(found, rounded, strict=True)]
    assert sum(close) >= 6
    assert found == pytest.approx(rounded, abs=0.2)
    assert all(abs(here - there) > 1e-4 for here, there in zip(found, plain, strict=True))


@pytest.mark.usefixtures("on_gpu")
def test_the_log_says_how_many_matrices_multiply_rows_of_8_bits(
    blocks: Quantized, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make_engine(blocks.folder)
    assert "; 14 multiply rows of 8 bits" in caplog.text


def test_noise_in_the_place_of_few_bits_is_said(blocks: Quantized, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make_engine(blocks.folder, load_format="dummy", num_snapshots=2)
    assert "--load-format dummy makes weights of 16 bits, not what" in caplog.text
    assert "--max-snapshots 2 changes nothing: this model keeps no states" in caplog.text


@pytest.mark.usefixtures("on_gpu")
def test_a_served_mixture_needs_no_new_variant(blocks: Quantized) -> None:
    pytest.importorskip("triton")
    from kernel_variants.recorder import recording_only
    from test_warm_up import mixture, nothing_new, warm_engine

    with recording_only() as seen:
        engine = warm_engine(blocks.folder)
        assert "_round_rows_kernel" in {variant.kernel for variant in seen}
        with nothing_new(seen):
            Driver(execute_on(engine), 80, 500).run(mixture(engine.slots.limits.vocab_size, 40), seed=3)


@pytest.mark.usefixtures("on_gpu")
def test_a_model_without_such_matrices_is_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    of_4_bits = quantize(healthy(saved_model), tmp_path / "model", awq_packer(16), AWQ)
    with pytest.raises(
        StartError, match=r"--gpu-activations 8bit is for floats and integers of 8 bits .* \(AWQ .* has none"
    ):
        make_engine(of_4_bits.folder)


def test_what_cannot_be_rounded_is_refused(
    saved_model: Callable[..., Any], blocks: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        StartError, match="--gpu-activations 8bit is for a GPU, this device is cpu; leave it out"
    ):
        make_engine(blocks.folder, gpu_activations="8bit")
    plain = healthy(saved_model)
    config = engine_config(plain, gpu_activations="8bit")
    with pytest.raises(StartError, match="--gpu-activations 8bit is for quantized weights"):
        check_activations(config, open_folder(plain, config.load_format, config.model_impl), CUDA)
    folder = open_folder(blocks.folder, config.load_format, config.model_impl)
    for capability in ((8, 0), (8, 9)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device, found=capability: found)
        if capability == (8, 9):
            check_activations(config, folder, CUDA)
            continue
        with pytest.raises(StartError, match=r"compute capability 8\.9 or more, this one has 8\.0"):
            check_activations(config, folder, CUDA)


def test_rows_are_rounded_where_it_is_asked(blocks: Quantized) -> None:
    asked = rounding_of(engine_config(blocks.folder, gpu_activations="8bit"), CUDA, torch.bfloat16)
    assert isinstance(asked, OnGpu)
    assert rounding_of(engine_config(blocks.folder), CUDA, torch.bfloat16) is NOT_ROUNDED
