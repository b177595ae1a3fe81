"""Runs the tasks of a part: skips those with lines, notes each that it begins, and turns failures into lines."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.gpu.lines import Line, Lines, Origin, Result, Task
from benchmarks.gpu.origin import origin

_OURS = "penstock"
# The most characters of the beginning, and of the end, of an error message.
_MOST_TEXT = 600
_DEVICE_ERRORS = ("CUDA error", "CUDA driver error", "device-side assert", "illegal memory access")


class OutOfTime(Exception):
    """The time of this part is over; what is missing is left to the next run."""


class DeviceLost(Exception):
    """After a failed call the device refuses all others of the process."""


class Run:
    """One part in one process. `device` is that of torch; `out` is the folder of the results."""

    def __init__(self, part: int, out: Path, rehearse: bool, seconds: float, match: str = "") -> None:
        self.part = part
        self.out = out
        self.rehearse = rehearse
        self.device = "cpu" if rehearse else "cuda"
        self.lines = Lines(out / "lines.jsonl")
        self.origin: Origin = origin(rehearse)
        self._deadline = time.monotonic() + seconds
        self.match = match
        self._begun = Begun(out, part)
        # A task that began and never ended, in this run or one before: it may end this process, too, so it comes last.
        self.postponed: Task | None = self._begun.task
        self._there = self.lines.tasks(self.origin)

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def has(self, name: str, by: str = _OURS) -> bool:
        """Whether there are lines of this task."""
        return Task(self.part, name, by) in self._there

    def measure(self, name: str, function: Callable[[], Iterable[Result]], by: str = _OURS) -> None:
        """Appends the results of a function, or its error. Raises OutOfTime, DeviceLost."""
        task = Task(self.part, name, by)
        if task in self._there or task == self.postponed or self.match not in name:
            return
        if self.seconds_left <= 0:
            raise OutOfTime
        self._begun.write(task)
        try:
            results = list(function())
        except (OutOfTime, DeviceLost):
            raise
        except Exception as error:
            self.add(name, [Result("", None, error=_told(error))], by)
            if is_of_device(str(error)):
                raise DeviceLost from error
        else:
            self.add(name, results, by)

    def add(self, name: str, results: Iterable[Result], by: str = _OURS) -> None:
        """Appends results that were measured elsewhere, such as in another process."""
        task = Task(self.part, name, by)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        lines = [Line(self.origin, date, task, result) for result in results]
        self.lines.append(lines)
        self._there.add(task)
        self._begun.clear()
        for line in lines:
            print(_as_text(line), flush=True)


class Begun:
    """The task that a part has begun, in a file: after a kill it tells what was being done."""

    def __init__(self, out: Path, part: int) -> None:
        self._path = out / f"part-{part}.begun"

    @property
    def task(self) -> Task | None:
        try:
            return Task(*json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, task: Task) -> None:
        self._path.write_text(json.dumps(task))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)


def is_of_device(message: str) -> bool:
    """Whether an error means that the device does nothing more for this process."""
    return any(sign in message for sign in _DEVICE_ERRORS)


def cores() -> int:
    """The number of this machine's cores that this process may use."""
    return len(os.sched_getaffinity(0))


def release() -> None:
    """Gives back memory that nothing refers to."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _told(error: Exception) -> str:
    """An error in a few lines: its message, and where it came from."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    message = f"{type(error).__name__}: {error}"
    if len(message) > 2 * _MOST_TEXT:
        message = f"{message[:_MOST_TEXT]} … {message[-_MOST_TEXT:]}"
    return f"{message} ({Path(where.filename).name}:{where.lineno})"


def _as_text(line: Line) -> str:
    task, result = line.task, line.result
    head = f"{task.part} {task.name}" + ("" if task.by == _OURS else f" [{task.by}]")
    if result.error:
        return f"{head}: FAILED: {result.error}"
    value = "" if result.value is None else f" {result.value:,.4g} {result.unit}"
    share = f" ({result.share:.0%} of the floor)" if result.share else ""
    return f"{head}: {result.what}{value}{share} {result.note}".rstrip()
