"""Which errors are a kernel's: they fail the requests of a step, others end the shard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_kernels.base.kernel_errors import is_kernel_error

_BROKEN = """
import torch, triton, triton.language as tl
from penstock_kernels.base.kernel_errors import is_kernel_error
from triton.compiler import ASTSource
from kernel_variants.variant import target

@triton.jit
def broken(x_ptr):
    top = tl.topk(tl.load(x_ptr + tl.arange(0, 64)), 1)
    tl.store(x_ptr + tl.arange(0, 1), top)

try:
    triton.compile(ASTSource(broken, {"x_ptr": "*fp32"}, {}, {}), target=target(90))
except Exception as error:
    assert is_kernel_error(error), repr(error)
    print("recognised")
"""


def test_what_triton_raises_is_recognised(tmp_path: Path, python_that_compiles: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "broken.py"
    script.write_text(_BROKEN)
    run = python_that_compiles(str(script))
    assert run.stdout == "recognised\n", run.stderr


def test_other_errors_are_not_taken_for_those_of_kernels() -> None:
    assert not is_kernel_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_kernel_error(ValueError("compile"))
