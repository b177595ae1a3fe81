"""No source of the project, tests and tools included, uses what turns data into running code."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOTS = ("server", "kernels", "demo", "benchmarks", "tests", "router/ui")
# A model's own `.eval()` only changes its mode.
FORBIDDEN = re.compile(
    r"\b(?:import|from) c?pickle\b|\bpickle\.|torch\.load\(|(?<!\.)\beval\(|trust_remote_code\s*=\s*True",
    re.IGNORECASE,
)
SOURCES = [
    file
    for root in ROOTS
    for file in sorted((REPOSITORY / root).rglob("*"))
    if file.suffix in (".py", ".js") and file != Path(__file__)
]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path, weights_only=True)",
        "x = eval(text)",
        "f(trust_remote_code=True)",
    ],
)
def test_what_runs_data_as_code_is_recognised(line: str) -> None:
    assert FORBIDDEN.search(line)


@pytest.mark.parametrize("line", ["model.eval()", "evaluate(text)", "unpickled = 1", 'name = "torch.load"'])
def test_what_is_harmless_is_left_alone(line: str) -> None:
    assert not FORBIDDEN.search(line)


def test_no_source_runs_data_as_code() -> None:
    assert {file.relative_to(REPOSITORY).parts[0] for file in SOURCES} == {r.split("/")[0] for r in ROOTS}
    found = {str(file) for file in SOURCES if FORBIDDEN.search(file.read_text(encoding="utf-8"))}
    assert not found
