"""Measures the time of each stage of a step, by the clock of the device that computes it."""

import time
from typing import Any

import torch


class StepClock:
    """Splits a step's time into stages, as the device spends it."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def mark(self) -> None:
        """End a stage at this point of the device's work; the first mark begins the first stage."""
        if self._is_cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def leave_out(self, seconds: float) -> None:
        """So much of the time up to now was waited for others; on a GPU nothing waits."""
        if not self._is_cuda:
            self._marks = [mark + seconds for mark in self._marks]

    def is_past(self) -> bool:
        """Whether the device has reached the last mark."""
        return not self._is_cuda or bool(self._marks[-1].query())

    def is_running(self) -> bool:
        """Whether the device still computes what comes before the last mark."""
        return not self.is_past()

    def wait(self) -> None:
        """Wait until the device has reached the last mark, but not for what was launched after it."""
        if self._is_cuda:
            self._marks[-1].synchronize()

    def laps_us(self) -> list[int]:
        """Microseconds of every stage, once the last mark is past."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._is_cuda:
            return [int(begin.elapsed_time(end) * 1e3) for begin, end in pairs]
        return [int((end - begin) * 1e6) for begin, end in pairs]
