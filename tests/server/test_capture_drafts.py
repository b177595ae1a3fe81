"""Steps with drafts on a GPU that is not there: the host waits where it must know tokens, and nowhere else; graphs own
what they use; and nothing is compiled after the warm-up.

`fake_gpu` says what is real in it.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafting_driver import DraftingDriver
from driver import Sequence, execute_on
from fake_gpu import FakeGpu
from open_spans import SIZES
from penstock_server.base.config import CudaConfig
from penstock_server.engine import head_drafter, medusa_drafter, model_drafter, parallel_drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.limiting_drafter import unlimited
from penstock_server.engine.rows import Rows
from penstock_server.engine.sampling_params import SamplingParams

pytest.importorskip("triton")
from test_warm_up_drafts import DRAFTERS, Made

GRAPHS = CudaConfig((1, 2, 4), prompt_graph_sizes=(8, 20))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu(monkeypatch)

    def waiting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with made.ops.waiting():
                return function(*arguments)

        return call

    # How many drafts were right decides where a slot stands, and drafts are part of the step that verifies them.
    monkeypatch.setattr(Engine, "_settle", waiting(Engine._settle))
    monkeypatch.setattr(Rows, "known_tokens", waiting(Rows.known_tokens))
    for module in (head_drafter, medusa_drafter, model_drafter, parallel_drafter):
        monkeypatch.setattr(module, "agreed", waiting(module.agreed))
    return made


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_step_with_drafts_waits_for_tokens_alone(
    saved_model: Callable[..., Any], gpu: FakeGpu, tmp_path: Path, kind: Callable[..., Made]
) -> None:
    folder, options = kind(saved_model, tmp_path)
    kinds = [SamplingParams(), SamplingParams(temperature=0.9, seed=7), SamplingParams(presence_penalty=0.2)]
    with gpu.on():
        engine = gpu.engine(folder, is_compiled=True, cuda=GRAPHS, dtype="bfloat16", **SIZES, **options)
        engine.drafter = unlimited(engine.drafter)
        sequences = [Sequence([5] * (3 + 6 * number), 8, each) for number, each in enumerate(kinds)]
        driver = DraftingDriver(execute_on(engine), engine.clear, SIZES["num_slots"], SIZES["num_blocks"])
        driver.play(sequences, random.Random(3))
    assert driver.num_drafted > 0
    gpu.check_variants()
