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
    _run(_CASES / file, "TRITON_INTERPRET", "1")


@pytest.mark.parametrize("file", ["test_attention.py", "test_sampling.py"])
def test_compiled_ops_equal_their_references(file: str) -> None:
    _run(_CASES / file, "PENSTOCK_KERNEL_CASES", "cpu")


def test_a_case_that_ends_its_process_is_named(tmp_path: Path) -> None:
    file = tmp_path / "test_ends.py"
    file.write_text("import os\n\ndef test_a():\n    pass\n\ndef test_b():\n    os.abort()\n")
    with pytest.raises(AssertionError, match="::test_b"):
        _run(file, "PENSTOCK_KERNEL_CASES", "cpu")


def _run(file: Path, name: str, value: str) -> None:
    # Verbose: a case is named before it runs, so that the last name is that of the case which ended the process.
    options = ["-v", "-p", "no:cacheprovider", "-p", "no:asyncio"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    env = {**os.environ, name: value, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
