"""No source of the project may turn data into running code, or use the time of day for a deadline."""

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


# A clock that an administrator sets must not end a request, or keep one that has to end.
TIME_OF_DAY = re.compile(
    r"\bSystemTime\b|\bZoned::now\b|\bTimestamp::now\b"
    r"|\btime\.(?:time|time_ns|localtime|gmtime)\(|\bdatetime\.(?:now|utcnow|today)\("
)
# Where it is only told: in answers, templates, logs and traces.
TELLS_THE_TIME = {
    "router/src/base/unix_time.rs",
    # A function of templates, and its test.
    "router/src/chat/template/environment.rs",
    "router/src/chat/template/templates.rs",
    "router/src/observe/access_log/request.rs",
    "router/src/observe/telemetry/sequence.rs",
    "router/src/observe/telemetry/steps.rs",
    "launcher/src/console.rs",
}


def test_the_time_of_day_is_only_reported() -> None:
    roots = ("router/src", "router/scheduler/src", "launcher/src", "server", "kernels")
    files = [
        file for root in roots for file in (REPOSITORY / root).rglob("*") if file.suffix in (".rs", ".py")
    ]
    assert len(files) > 100
    found = {
        str(file.relative_to(REPOSITORY))
        for file in files
        if TIME_OF_DAY.search(file.read_text(encoding="utf-8"))
    }
    assert found == TELLS_THE_TIME


def test_a_rust_module_in_a_folder_is_its_mod_rs() -> None:
    files = [
        file
        for root in ("router/src", "router/scheduler/src", "launcher/src", "benchmarks/load/src")
        for file in (REPOSITORY / root).rglob("*.rs")
    ]
    assert len(files) > 200
    beside_a_folder = {str(file) for file in files if file.with_suffix("").is_dir()}
    assert not beside_a_folder
