"""Which errors are a kernel's: they fail the requests of a step, others end the shard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_kernels.base.kernel_errors import is_kernel_error

_BROKEN = """
import torch, triton, triton.language as tl
from penstock_kernels import gpu
from penstock_kernels.base.kernel_errors import is_kernel_error
from triton.compiler import ASTSource
from kernel_variants.variant import target

@triton.jit
def odd(x_ptr):
    tl.store(x_ptr + tl.arange(0, 63), 1.0)

@triton.jit
def unknown_instruction(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 64))
    y = tl.inline_asm_elementwise("unknown $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(x_ptr + tl.arange(0, 64), y)

for kernel in odd, unknown_instruction:
    try:
        triton.compile(ASTSource(kernel, {"x_ptr": "*fp32"}, {}, {}), target=target(90))
    except Exception as error:
        assert is_kernel_error(error), repr(error)
        print(type(error).__name__)
"""


def test_what_triton_raises_is_recognised(tmp_path: Path, python_that_compiles: Callable[..., Any]) -> None:
    pytest.importorskip("triton")
    script = tmp_path / "broken.py"
    script.write_text(_BROKEN)
    run = python_that_compiles(str(script))
    assert {"CompilationError", "PTXASError"} <= set(run.stdout.splitlines()), run.stdout + run.stderr


def test_a_pass_that_fails_is_one_of_them() -> None:
    assert is_kernel_error(RuntimeError("PassManager::run failed"))


def test_other_errors_are_not_taken_for_those_of_kernels() -> None:
    assert not is_kernel_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_kernel_error(ValueError("compile"))
