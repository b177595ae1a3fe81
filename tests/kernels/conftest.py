"""The cases of `cases/` run the kernels themselves: on a GPU, or on the CPU in a process of their own.

TRITON_INTERPRET must be set before Triton is imported, so each file gets a process; one, whatever asks for it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).parents[2]
_CASES = Path(__file__).parent / "cases"
CASE_FILES = sorted(path.name for path in _CASES.glob("test_*.py"))

Run = subprocess.CompletedProcess[str]

_chosen = {"TRITON_INTERPRET", "PENSTOCK_KERNEL_CASES"} & set(os.environ)
collect_ignore = [] if _chosen or torch.cuda.is_available() else ["cases"]


def run_cases(file: Path, **environment: str) -> Run:
    """The cases of a file, in a process with these variables."""
    # Verbose: a case is named before it runs, so that the last name is that of the case which ended the process.
    options = ["-v", "-p", "no:cacheprovider", "-p", "timeout", "-p", "hypothesispytest"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    # Plugins that other tests need take a second to import.
    env = {**os.environ, **environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False)


def run_compiling(*arguments: str, **environment: str) -> Run:
    """Python in a process in which Triton compiles and does not interpret, without a GPU. PENSTOCK_TRITON: a folder
    with the Triton that does, where that is not the installed one."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    paths = env.get("PENSTOCK_TRITON"), str(_ROOT / "tests"), env.get("PYTHONPATH")
    env |= {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TRITON_CACHE_DIR": str(_ROOT / "target" / "triton"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=_ROOT, env=env | environment, capture_output=True, text=True, check=False
    )


class InterpretedCases:
    """Runs of the cases under the interpreter, and the variants of kernels that they launched."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: dict[str, Run] = {}

    def run(self, file: str) -> Run:
        """The run of a file, which is made once."""
        if file not in self._runs:
            variables = {
                "TRITON_INTERPRET": "1",
                "PENSTOCK_RECORD_VARIANTS": str(self._folder / f"{file}.txt"),
            }
            self._runs[file] = run_cases(_CASES / file, **variables)
        return self._runs[file]

    def variants(self) -> Path:
        """A file with the variants of all cases; in the folder PENSTOCK_VARIANTS, if there is one."""
        for file in CASE_FILES:
            self.run(file)
        recorded = {
            line for path in self._folder.glob("*.py.txt") for line in path.read_text().splitlines(True)
        }
        merged = Path(os.environ.get("PENSTOCK_VARIANTS") or self._folder) / "cases.txt"
        merged.write_text("".join(sorted(recorded)))
        return merged


@pytest.fixture(scope="session")
def interpreted_cases(tmp_path_factory: pytest.TempPathFactory) -> InterpretedCases:
    return InterpretedCases(tmp_path_factory.mktemp("variants"))


@pytest.fixture
def cases_in() -> Callable[..., Run]:
    """Runs the cases of a file in a process with other variables."""
    return run_cases


@pytest.fixture
def python_that_compiles() -> Callable[..., Run]:
    """Runs Python in a process in which Triton compiles."""
    return run_compiling


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Sets how many threads ops have, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def poison_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on new memory is NaN, so that what is read before it is written shows."""
    empty = torch.empty

    def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return empty(*shape, dtype=dtype).fill_(float("nan"))

    return lambda: monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture(params=[True, False], ids=["any-product", "no-tiles"])
def has_amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by whatever the processor has, and once without its tiles."""
    if not request.param:
        monkeypatch.setattr("penstock_kernels.native.linear.has_amx", lambda: False)
