"""Variants that are compiled before they are launched: in threads, once, without a run. No GPU is needed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

# Triton asks its driver for the device: this one says it is an H100.
_SCRIPT = """

import torch
import triton
from kernel_variants.variant import target
from penstock_kernels import add_bias, embedding
from penstock_kernels.base import devices
from penstock_kernels.gpu import adjust, embedding as embeddings
from penstock_kernels.gpu.ahead import compiling_only

class Driver:
    def __getattr__(self, name):
        answers = {"get_current_device": 0, "get_current_stream": 0, "get_current_target": target(90)}
        return lambda *arguments: answers[name]

triton.runtime.driver.set_active(Driver())
devices.INTERPRETS = True
ids, weight = torch.zeros(3, dtype=torch.int64), torch.ones(5, 64)
empty = torch.empty
with compiling_only() as compiled:
    assert embedding(ids, weight).tolist() == torch.zeros(3, 64).tolist()
    embedding(torch.zeros(700, dtype=torch.int64), weight)
    flags = torch.empty(2, dtype=torch.bool)
    add_bias(torch.zeros(2, 64), ids[:2], ids[:2], torch.zeros(2))
assert flags.all()
assert torch.empty is empty
caches = [list(kernel.device_caches[0][0].values()) for kernel in (embeddings._embedding_kernel, adjust._bias_kernel)]
assert [len(cache) for cache in caches] == [1, 1], caches
print(compiled.num_new, compiled.num_found)
"""


def test_variants_are_compiled_once_and_found_on_disk_later(
    tmp_path: Path, python_that_compiles: Callable[..., Any]
) -> None:
    script = tmp_path / "ahead.py"
    script.write_text(_SCRIPT)
    for expected in ("2 0\n", "0 2\n"):
        run = python_that_compiles(str(script), TRITON_CACHE_DIR=str(tmp_path / "cache"))
        assert run.stdout == expected, run.stdout + run.stderr[-3000:]
