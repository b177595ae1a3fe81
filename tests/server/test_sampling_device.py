"""The sampler on a device whose numbers the host cannot read: nothing there may wait for it."""

import random
import sys
from typing import Any

import pytest
import torch
from penstock_server.engine import exclusions, sampling
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.engine.step import SamplingInput
from sampler_rows import VOCAB, Row, columns, random_row, sampled_row

_LAUNCHED = {"noise", "count", "penalize", "bias", "mask", "part", "join"}
_LAUNCHED |= {"largest", "likely", "threshold", "noisy_part", "first_of_parts"}  # of a draw


def _on_device(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the kernels that would have run. Tensors have no memory: whoever reads one raises."""
    pytest.importorskip("triton")
    from penstock_kernels.gpu import adjust, logprobs, noise, sampler  # before what decides how they import
    from triton.runtime.jit import JITFunction

    assert all(module.__name__ in sys.modules for module in (adjust, logprobs, noise, sampler))
    names: set[str] = set()

    def keep(self: JITFunction[Any], *args: Any, **kwargs: Any) -> None:
        names.add(self.__name__.strip("_").removesuffix("_kernel"))

    monkeypatch.setattr(JITFunction, "run", keep)
    monkeypatch.setattr("penstock_kernels.base.devices.INTERPRETS", True)
    for module in (sampling, exclusions):
        monkeypatch.setattr(
            module, "to_device", lambda values, dtype, device: torch.tensor(values, dtype=dtype).to(device)
        )
        monkeypatch.setattr(module, "copy_to_device", lambda tensor, device: tensor.to(device))
    return names


def test_nothing_is_read_back(launched: set[str]) -> None:
    rng = random.Random(1)
    rows = [random_row(rng) for _ in range(9)]
    rows.append(Row(SamplingParams(watermark_delta=2.0, watermark_gamma=0.3), [7], [9]))
    num_rows = len(rows)
    logits = _on_device(num_rows, VOCAB, dtype=torch.float32)
    inputs = SamplingInput(
        rows=[sampled_row(number, row, logits.device) for number, row in enumerate(rows)],
        slots=_on_device(num_rows),
        lengths=_on_device(num_rows),
        prompt_lens=_on_device(num_rows),
        params=_on_device(num_rows, len(columns(SamplingParams())), dtype=torch.float32),
        seeds=_on_device(num_rows),
    )
    masks = GrammarMasks([1, 4], torch.zeros(2, -(-VOCAB // 32), dtype=torch.int32))
    sampled = sampling.sample(logits, inputs, _on_device(num_rows, 50, dtype=torch.int32), masks)
    assert sampled.token_ids.shape == (num_rows,)
    assert sampled.top_ids is not None
    assert sampled.top_ids.shape == (num_rows, 4)
    assert launched == _LAUNCHED
