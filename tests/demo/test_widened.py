"""The larger models of the benchmarks of drafts compute what the demo model computes."""

import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaForCausalLM

from benchmarks.serving.widened import BILLION, DEMO, MILLIONS_30, Widths, widen


@pytest.mark.parametrize("widths", [MILLIONS_30, BILLION._replace(intermediate=512, layers=5)])
def test_it_says_what_the_demo_model_says(tmp_path: Path, widths: Widths) -> None:
    widen(tmp_path / "wide", widths)
    demo, wide = (
        LlamaForCausalLM.from_pretrained(it, dtype=torch.float32) for it in (DEMO, tmp_path / "wide")
    )
    ids = torch.randint(3, 2000, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(wide(ids).logits, demo(ids).logits, atol=1e-3, rtol=1e-3)


def test_it_has_as_many_parameters_as_its_name_says(tmp_path: Path) -> None:
    widen(tmp_path / "wide")
    with safe_open(tmp_path / "wide" / "model.safetensors", "pt") as opened:
        shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]  # noqa: SIM118
    assert MILLIONS_30.num_parameters == sum(map(math.prod, shapes))
    assert 29e6 < MILLIONS_30.num_parameters < 31e6
    assert 1.0e9 < BILLION.num_parameters < 1.05e9
