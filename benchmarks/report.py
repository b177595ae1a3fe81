"""Results as files: one JSON for each question, and RESULTS.md made from all of them.

What was measured by hand since, in a part of a question for instance, is written to `results/NAME.md`: it stands below
the table until the question is measured again.
"""

import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from benchmarks.gpu.report import published
from benchmarks.questions import Question, questions

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"
_HEAD = """# Results

<!-- Written by `make bench` from benchmarks/results/. -->

`make bench` measures all of this; `python -m benchmarks NAME …` measures some of it. Figures on a shared machine vary:
where two things are compared, they ran one after the other in the same run, and the median of the ratios is given.
What has no floor explains what has one.
"""


def save(question: Question, figures: list[Figure], load: float) -> None:
    """`load` is the number of runnable processes when the measurement began."""
    _RESULTS.mkdir(exist_ok=True)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": _machine(),
        "load": round(load, 1),
        "figures": [figure.json() for figure in figures],
    }
    _path(question).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    _path(question, "md").unlink(missing_ok=True)


def render() -> None:
    """Writes RESULTS.md again from all results."""
    parts = [
        _HEAD,
        *(_section(question) for question in questions() if _path(question).exists()),
        *published(),
    ]
    (_HERE / "RESULTS.md").write_text("\n".join(parts))


def table(figures: list[Figure]) -> str:
    """Formats the figures as a Markdown table."""
    rows = [("", "measured", "floor", "", "")]
    rows += [(it.name, it.written, it.floor, it.verdict, it.note) for it in figures]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "| --- | ---: | --- | --- | --- |", *lines[1:]])


def _path(question: Question, kind: str = "json") -> Path:
    return _RESULTS / f"{question.name}.{kind}"


def _section(question: Question) -> str:
    result: dict[str, Any] = json.loads(_path(question).read_text())
    figures = [Figure(**fields) for fields in result["figures"]]
    where = f"`{question.name}` · {result['date']} · {result['machine']} · load {result['load']} at the start"
    since = _path(question, "md")
    remarks = f"\n{since.read_text()}" if since.exists() else ""
    return f"## {question.title}\n\n{where}\n\n{table(figures)}\n{remarks}"


def _machine() -> str:
    return f"{_processor()}, on {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"


def _processor() -> str:
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _cpuinfo() -> Iterator[str]:
    path = Path("/proc/cpuinfo")
    yield from path.read_text().splitlines() if path.exists() else []
