"""Takes times: on a GPU by events of the device, so that neither the host nor its clock is part of them."""

import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any, NamedTuple

import torch

# Milliseconds of repetitions before and during a measurement.
_WARM_UP_MS, _MEASURE_MS = 50, 300


class Time(NamedTuple):
    """Microseconds of a call: the median, and between which values 60% of all calls lie."""

    median: float
    fast: float
    slow: float
    is_captured: bool

    @property
    def note(self) -> str:
        spread = f"{self.fast:,.1f} to {self.slow:,.1f}"
        return spread if self.is_captured else f"{spread}; launched op by op"


def time_call(run: Callable[[], Any], device: str) -> Time:
    """A call as the device spends it: captured once and replayed, the second-level cache overwritten before each."""
    if device != "cuda":
        return _on_cpu(run)
    from triton.testing import do_bench

    run()
    replay = _captured(run)
    fast, median, slow = do_bench(
        replay or run, warmup=_WARM_UP_MS, rep=_MEASURE_MS, quantiles=[0.2, 0.5, 0.8]
    )
    return Time(median * 1e3, fast * 1e3, slow * 1e3, replay is not None)


def _captured(run: Callable[[], Any]) -> Callable[[], None] | None:
    """None where a call waits for the device, which no graph can hold."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def _on_cpu(run: Callable[[], Any], repeats: int = 3) -> Time:
    run()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append((time.perf_counter() - begun) * 1e6)
    fast, median, slow = quantiles(times, n=4, method="inclusive")
    return Time(median, fast, slow, is_captured=False)


class Stopwatch:
    """The time between two points of the device's work, in microseconds; that of the host on a CPU."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device == "cuda"
        self._begun = self._mark()

    def read(self) -> float:
        """Waits until the device has reached this point."""
        ended = self._mark()
        if not self._is_cuda:
            return float(ended - self._begun) * 1e6
        ended.synchronize()
        return float(self._begun.elapsed_time(ended)) * 1e3

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event
