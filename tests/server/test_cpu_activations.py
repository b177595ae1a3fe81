"""`--cpu-activations`: the tokens of a model whose inputs are rounded, on any number of shards; else refused."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from driver import Driver, Execute, Sequence, engine_config, make_engine
from penstock_kernels import IntGroups
from penstock_kernels.reference.quantized_linear import round_inputs
from penstock_server.base.errors import StartError
from penstock_server.files.model_folder import open_folder
from penstock_server.load import activations
from penstock_server.load.activations import check_activations, rounding_of
from penstock_server.network.quantization.rounded_inputs import NOT_ROUNDED
from quantized_checks import prompts, rounding_inputs
from quantized_models import Quantized, healthy, quantize
from test_quantization_awq_gptq import AWQ, gptq, settings
from test_quantization_awq_gptq import awq as awq_packer
from thread_ranks import engines, execute_on_all

GROUP = 16


@pytest.fixture(scope="module")
def awq(saved_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Quantized:
    """4 bits with zero points, in groups of 16."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("rounded") / "model"
    return quantize(healthy(saved_model), folder, awq_packer(GROUP), AWQ)


def _rounded(x: torch.Tensor, size: int, begin: int, bits: int) -> torch.Tensor:
    codes, scales = torch.empty(0, size, dtype=torch.uint8), torch.empty(0, -(-size // GROUP))
    matrix = IntGroups(codes, scales, None, size, 8, GROUP, input_bits=bits)
    return round_inputs(x, matrix.columns(begin, begin + x.shape[1]))


@pytest.mark.parametrize(("size", "bits"), [(1, 8), (2, 8), (3, 8), (1, 16), (2, 16)])
def test_answers_are_those_of_rounded_inputs(
    size: int, bits: int, awq: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = prompts(8)
    plain = [oracle.greedy(awq.oracle, prompt, 1)[1][0] for prompt in given]
    with rounding_inputs(awq.oracle, size, partial(_rounded, bits=bits)):
        rounded = [oracle.greedy(awq.oracle, prompt, 1)[1][0] for prompt in given]
    with engines(awq.folder, size, monkeypatch, cpu_activations=f"int{bits}") as ranks:
        found = _logprobs(execute_on_all(ranks), given)
    # Inputs that differ in their last bits may still be rounded to different codes: then an answer moves, a little.
    close = [abs(here - there) < 1e-4 for here, there in zip(found, rounded, strict=True)]
    assert sum(close) >= 6
    assert found == pytest.approx(rounded, abs=0.1)
    if bits == 8:
        assert all(abs(here - there) > 1e-4 for here, there in zip(found, plain, strict=True))
    else:
        assert found == pytest.approx(plain, abs=2e-3)


@pytest.mark.parametrize(("prefers", "expected"), [(True, 16), (False, 0)])
def test_auto_rounds_only_what_is_coarser(
    prefers: bool, expected: int, awq: Quantized, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "prefers_rounded", lambda: prefers)
    for dtype, bits in (("float32", 0), ("bfloat16", expected)):
        model = make_engine(awq.folder, dtype=dtype).model
        assert isinstance(model, torch.nn.Module)
        matrices = [part for it in model.modules() for part in getattr(it, "matrices", None) or ()]
        assert {it.input_bits for it in matrices if isinstance(it, IntGroups)} == {bits}
    cuda = rounding_of(engine_config(awq.folder), torch.device("cuda"), torch.bfloat16)
    assert cuda == NOT_ROUNDED


def _logprobs(execute: Execute, given: list[list[int]]) -> list[float]:
    """The log probability of the first output token of every prompt."""
    found = Driver(execute).run([Sequence(prompt, 1) for prompt in given])
    return [sequence.logprobs[0] for sequence in found]


def test_the_log_says_how_many_matrices_multiply_rows_of_int8(
    awq: Quantized, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        make_engine(awq.folder, cpu_activations="int8")
    assert "14 matrices take" in caplog.text
    assert "; 14 multiply rows of int8" in caplog.text


def test_what_cannot_be_rounded_is_refused(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    plain = healthy(saved_model)
    with pytest.raises(StartError, match="--cpu-activations int8 is for quantized weights"):
        make_engine(plain, cpu_activations="int8")
    packer = gptq(4, GROUP, has_zeros=True, order="activations")
    by_activations = quantize(plain, tmp_path / "model", packer, settings(4, GROUP, sym=False, desc_act=True))
    with pytest.raises(
        StartError, match=r"integers with groups in order, without offsets, and this model \(GPTQ"
    ):
        make_engine(by_activations.folder, cpu_activations="int8")
    config = engine_config(by_activations.folder, cpu_activations="int8")
    folder = open_folder(by_activations.folder, config.load_format, config.model_impl)
    with pytest.raises(StartError, match="--cpu-activations int8 is for a CPU, this device is cuda"):
        check_activations(config, folder, torch.device("cuda"))
