"""Every launch of the cases compiles for a GPU: each is recorded as Triton would specialise it, and compiled here.

`make test` compiles for sm_90, of each kernel as few variants as have every type, alignment and constant of all.
`make variants` compiles all of them, for every capability (PENSTOCK_COMPILE_ALL).
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from penstock_kernels.base.kernel_errors import is_kernel_error

_ROOT = Path(__file__).parents[2]
_ALL = bool(os.environ.get("PENSTOCK_COMPILE_ALL"))

pytest.importorskip("triton")


def _run(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {
        "PYTHONPATH": str(_ROOT / "tests"),
        "TRITON_CACHE_DIR": str(_ROOT / "target" / "triton"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=_ROOT, env=env | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(7200 if _ALL else 900)
@pytest.mark.parametrize("capability", [80, 89, 90, 100] if _ALL else [90])
def test_every_variant_compiles_without_a_spill(interpreted_cases: Any, capability: int) -> None:
    options = ["--capability", str(capability), *(["--all"] if _ALL else [])]
    run = _run(["-m", "kernel_variants.compiler", str(interpreted_cases.variants()), *options])
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


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


def test_what_triton_raises_is_recognised(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text(_BROKEN)
    run = _run([str(script)])
    assert run.stdout == "recognised\n", run.stderr


def test_other_errors_are_not_taken_for_those_of_kernels() -> None:
    assert not is_kernel_error(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not is_kernel_error(ValueError("compile"))
