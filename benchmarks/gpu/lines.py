"""The results of a run: one JSON object a line, appended at once, so that a run that is killed loses nothing."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """A measurement, and whose implementation it measures: the key by which a second run knows which lines exist."""

    part: int
    name: str
    by: str


@dataclass(frozen=True)
class Origin:
    """Where lines come from. Lines of one origin can be compared; `rehearsal`: on a CPU, in tiny sizes."""

    device: str
    commit: str
    rehearsal: bool


@dataclass(frozen=True)
class Result:
    """One number. `floor` is the best value that the device allows, in the same unit; `error` is why there is none."""

    what: str
    value: float | None
    unit: str = ""
    floor: float | None = None
    note: str = ""
    error: str = ""

    @property
    def share(self) -> float | None:
        """How near the value is to the floor, as a part of 1."""
        if not self.value or not self.floor:
            return None
        return self.value / self.floor if self.unit.endswith("/s") else self.floor / self.value


@dataclass(frozen=True)
class Line:
    """A result with its task and its origin."""

    origin: Origin
    date: str
    task: Task
    result: Result

    def json(self) -> str:
        fields = {**asdict(self.origin), "date": self.date, **self.task._asdict(), **asdict(self.result)}
        return json.dumps(fields, ensure_ascii=False)


class Lines:
    """The file of a run. Several processes may append to it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, lines: list[Line]) -> None:
        """Writes these lines in one piece, so that a task is there with all its results or not at all."""
        text = "".join(line.json() + "\n" for line in lines)
        if self._is_torn():
            text = "\n" + text
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)

    def _is_torn(self) -> bool:
        """Whether the last line has no end: the machine stopped, or the disk was full."""
        return self.path.exists() and self.path.read_bytes()[-1:] not in (b"", b"\n")

    def read(self) -> list[Line]:
        """All lines that are whole."""
        return list(read(self.path)) if self.path.exists() else []

    def tasks(self, origin: Origin) -> set[Task]:
        """The tasks that this origin has lines of."""
        return {line.task for line in self.read() if line.origin == origin}


def read(path: Path) -> Iterator[Line]:
    """The lines of a file; one that was cut off is left out."""
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            yield _line(json.loads(text))
        except (json.JSONDecodeError, KeyError, TypeError):
            continue


def _line(fields: dict[str, object]) -> Line:
    parts = (Origin, Task, Result)
    origin, task, result = ({name: fields[name] for name in part.__annotations__} for part in parts)
    return Line(Origin(**origin), str(fields["date"]), Task(**task), Result(**result))  # type: ignore[arg-type]
