"""A whole shard on the kernels: the tokens are those of the twins, in free steps and in steps of fixed sizes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import Driver, Sequence, execute_on, make_engine
from penstock_server.config import CudaConfig
from penstock_server.plan import SamplingParams

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Norms of queries and keys on the way into the cache are the second's, windows the third's.
CASES: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("llama", {}, (1, 4)),
    ("qwen3", {}, ()),
    ("mistral", {"sliding_window": 6}, (2,)),
]


def sequences() -> list[Sequence]:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=0.8, top_k=9, seed=3),
        SamplingParams(presence_penalty=0.7),
    ]
    return [Sequence([3 + number, 5, 9][: 1 + number], 5, kinds[number]) for number in range(3)]


def outputs(folder: Path, **options: Any) -> list[Sequence]:
    engine = make_engine(folder, dtype="float32", is_poisoned=True, **options)
    return Driver(execute_on(engine)).run(sequences(), seed=2)


@pytest.fixture
def of_twins(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], list[Sequence]]:
    """What the plain twins give on the CPU."""

    def run(folder: Path) -> list[Sequence]:
        chosen = os.environ.get("TRITON_INTERPRET")
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        try:
            return outputs(folder, device="cpu")
        finally:
            if chosen is not None:
                monkeypatch.setenv("TRITON_INTERPRET", chosen)

    return run


@pytest.mark.parametrize(("family", "options", "sizes"), CASES)
def test_tokens_are_those_of_the_twins(
    saved_model: Callable[..., Any],
    of_twins: Callable[[Path], list[Sequence]],
    family: str,
    options: dict[str, Any],
    sizes: tuple[int, ...],
) -> None:
    folder = saved_model(family, **options).folder
    found = outputs(folder, device=DEVICE, cuda=CudaConfig(sizes))
    for one, other in zip(of_twins(folder), found, strict=True):
        assert other.output == one.output
        assert other.logprobs == pytest.approx(one.logprobs, abs=1e-3)
