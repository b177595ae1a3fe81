"""Where the cases run, and what every case shares."""

import os
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from kernels.memory_checker.checker import MemoryChecker

sys.path.insert(0, str(Path(__file__).parent))

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Whether the same cases run through the code of a CPU without an interpreter.
_NATIVE = os.environ.get("PENSTOCK_KERNEL_CASES") == "cpu"

# Where the variants of all launches are to be written.
_RECORD = os.environ.get("PENSTOCK_RECORD_VARIANTS")
# Tests of what only the interpreter has.
collect_ignore = [] if _INTERPRETED else ["test_memory_checker.py"]
_CHECKER = MemoryChecker()

if _INTERPRETED:
    import interpreter
    from kernels.memory_checker.hooks import install

    interpreter.repair()
    interpreter.speed_up()
    install(_CHECKER)


def pytest_configure(config: pytest.Config) -> None:
    # Overflow to infinity is arithmetic on a GPU; only numpy, below the interpreter, remarks on it.
    config.addinivalue_line("filterwarnings", "ignore::RuntimeWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not (_INTERPRETED or _NATIVE):
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker("gpu")


@pytest.fixture(scope="session", autouse=True)
def _recorded_variants() -> Iterator[None]:
    if not (_INTERPRETED and _RECORD):
        yield
        return
    from kernel_variants import recorder

    with recorder.recording() as variants:
        yield
    recorder.write(variants, Path(_RECORD))


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if _INTERPRETED or _NATIVE else "cuda")


@pytest.fixture(autouse=True)
def program_seed(request: pytest.FixtureRequest) -> int:
    """The interpreter runs the programs of a launch in an order that follows from this: PENSTOCK_PROGRAM_SEED, or a
    number of the case's own. A failure shows it."""
    seed = int(os.environ.get("PENSTOCK_PROGRAM_SEED") or zlib.crc32(request.node.nodeid.encode()))
    request.node.add_report_section("setup", "order of programs", f"PENSTOCK_PROGRAM_SEED={seed}")
    _CHECKER.restart(seed)
    return seed


@pytest.fixture
def exempt_from_races(program_seed: int) -> Callable[[torch.Tensor], None]:
    """Has the interpreter let several programs write a contiguous tensor: what is there is never read."""
    return _CHECKER.exempt_from_races


@pytest.fixture
def reach(program_seed: int) -> Callable[[torch.Tensor], None]:
    """Has the interpreter let kernels read a tensor whose address they find in an argument."""
    return _CHECKER.reach


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new tensor starts as NaN, or as an enormous integer: what an op does not write shows."""
    torch.manual_seed(0)
    plain = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        made = plain(*args, **kwargs)  # type: ignore[call-overload]
        if made.is_floating_point():
            return made.fill_(float("nan"))  # type: ignore[no-any-return]
        return made if made.dtype == torch.bool else made.fill_(torch.iinfo(made.dtype).max // 2)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch, "empty", poisoned)
