"""The parts of a step in this process, from the bytes of its plan to those of its outcome, on one thread."""

import time
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import penstock_endpoint
from penstock_server.base.config import CacheConfig, CudaConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Timings
from penstock_server.rpc.columns import outcome_to_columns, plan_from_columns
from penstock_server.rpc.conversion import Encoding

from benchmarks import local_engine
from benchmarks.step_cost import scene

_NUM_WARM, _NUM_COUNTED = 20, 300
COMPUTE = "compute"
# Functions of an engine that make up a part; what a step does outside of them is "the rest".
_PARTS = {
    "apply": ("slots.apply", "slots.decodes", "staging.stage_decodes"),
    COMPUTE: ("_forward",),
    "sample": ("_sample", "_commit"),
}
_FROM_WIRE, _TO_WIRE, _REST = "plan from the wire", "outcome to the wire", "the rest"


class Parts:
    """An engine whose parts are timed, in nanoseconds of its thread's processor time."""

    def __init__(self, model: Path) -> None:
        self.engine = _engine(model)
        self._spent: dict[str, int] = defaultdict(int)
        for part, names in _PARTS.items():
            for name in names:
                self._watch(part, name)

    def measure(self, num_rows: int, sampling: str) -> dict[str, float]:
        """Microseconds of each part of a decode step, the median of many."""
        source = scene.plans(1, num_rows, sampling)
        steps = [self._step(next(source)) for _ in range(1 + _NUM_WARM + _NUM_COUNTED)][1 + _NUM_WARM :]
        self.engine.clear()
        return {part: median(step[part] for step in steps) / 1e3 for part in steps[0]}

    def _step(self, encoded: bytes) -> dict[str, int]:
        self._spent.clear()
        marks = [time.thread_time_ns()]
        plan = plan_from_columns(penstock_endpoint.Plan(encoded))
        marks.append(time.thread_time_ns())
        outcome = self.engine.launch(plan).resolve()
        marks.append(time.thread_time_ns())
        if COMPUTE not in self._spent:
            self._take_laps(outcome.timings)
        outcome_to_columns(outcome, Encoding()).encoded()
        marks.append(time.thread_time_ns())
        from_wire, step, to_wire = (after - before for before, after in pairwise(marks))
        rest = step - sum(self._spent.values())
        return {
            _FROM_WIRE: from_wire,
            **{part: self._spent[part] for part in _PARTS},
            _REST: rest,
            _TO_WIRE: to_wire,
        }

    def _take_laps(self, laps: Timings) -> None:
        """A step of plain decodes is one call, which measures its parts itself, by the clock."""
        for part, lap in zip(_PARTS, laps, strict=False):
            self._spent[part] += 1000 * lap

    def _watch(self, part: str, name: str) -> None:
        *path, method = name.split(".")
        owner: Any = self.engine
        for step in path:
            owner = getattr(owner, step)
        setattr(owner, method, self._timed(part, getattr(owner, method)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            began = time.thread_time_ns()
            try:
                return function(*given)
            finally:
                self._spent[part] += time.thread_time_ns() - began

        return timed


def _engine(model: Path) -> Engine:
    cache = CacheConfig(scene.MAX_LEN, None, scene.MAX_ROWS, scene.NUM_BLOCKS, scene.BLOCK_SIZE)
    graphs = CudaConfig(graph_sizes=scene.NUMS_ROWS)
    return local_engine.load(model, cache, load_format="dummy", threads=1, cuda=graphs)
