"""The larger model of the benchmark of drafts computes what the demo model computes."""

from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from benchmarks.serving.widened import DEMO, num_parameters, widen


def test_it_says_what_the_demo_model_says(tmp_path: Path) -> None:
    widen(tmp_path / "wide")
    assert 29e6 < num_parameters(tmp_path / "wide") < 31e6
    demo, wide = (
        LlamaForCausalLM.from_pretrained(it, dtype=torch.float32) for it in (DEMO, tmp_path / "wide")
    )
    ids = torch.randint(3, 2000, (1, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(wide(ids).logits, demo(ids).logits, atol=1e-3, rtol=1e-3)
