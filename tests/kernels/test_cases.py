"""Runs the kernel cases in processes of their own, which may crash: interpreted kernels, and C.

Every launch of an interpreted kernel is recorded as Triton would specialise it, and compiled here for a GPU. `make
test` compiles for sm_90, of each kernel as few variants as have every type, alignment and constant of all. `make
variants` compiles all of them, for every capability (PENSTOCK_COMPILE_ALL).
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_CASES = Path(__file__).parent / "cases"
_ALL = bool(os.environ.get("PENSTOCK_COMPILE_ALL"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", sorted(path.name for path in _CASES.glob("test_*.py")))
def test_kernels_equal_their_references(file: str, interpreted_cases: Any) -> None:
    pytest.importorskip("triton")
    _check(interpreted_cases.run(file))


# In the file of the cases, so that one worker runs them once for both.
@pytest.mark.timeout(7200 if _ALL else 900)
@pytest.mark.parametrize("capability", [80, 89, 90, 100] if _ALL else [90])
def test_every_variant_compiles_without_a_spill(
    interpreted_cases: Any, python_that_compiles: Callable[..., Any], capability: int
) -> None:
    pytest.importorskip("triton")
    options = ["--capability", str(capability), *(["--all"] if _ALL else [])]
    variants = str(interpreted_cases.variants())
    run = python_that_compiles("-m", "kernel_variants.compiler", variants, *options)
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]


@pytest.mark.parametrize(
    "file",
    [
        "test_adapters.py",
        "test_attention.py",
        "test_choose_positions.py",
        "test_experts.py",
        "test_sampling.py",
    ],
)
def test_compiled_ops_equal_their_references(file: str, cases_in: Callable[..., Any]) -> None:
    _check(cases_in(_CASES / file, PENSTOCK_KERNEL_CASES="cpu"))


def test_a_case_that_ends_its_process_is_named(tmp_path: Path, cases_in: Callable[..., Any]) -> None:
    file = tmp_path / "test_ends.py"
    file.write_text("import os\n\ndef test_a():\n    pass\n\ndef test_b():\n    os.abort()\n")
    with pytest.raises(AssertionError, match="::test_b"):
        _check(cases_in(file, PENSTOCK_KERNEL_CASES="cpu"))


def _check(run: Any) -> None:
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
