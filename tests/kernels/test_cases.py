"""Runs the kernel cases in a process of their own, which may crash: interpreted kernels, and C."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_CASES = Path(__file__).parent / "cases"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", sorted(path.name for path in _CASES.glob("test_*.py")))
def test_kernels_equal_their_references(file: str) -> None:
    pytest.importorskip("triton")
    _run(file, "TRITON_INTERPRET", "1")


@pytest.mark.parametrize("file", ["test_attention.py", "test_sampling.py"])
def test_compiled_ops_equal_their_references(file: str) -> None:
    _run(file, "PENSTOCK_KERNEL_CASES", "cpu")


def _run(file: str, name: str, value: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    command = [sys.executable, "-m", "pytest", *options, str(_CASES / file)]
    env = {**os.environ, name: value, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
