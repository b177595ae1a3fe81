"""The parts of a run, most valuable first. Each imports only what it needs, when it runs."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from benchmarks.gpu.run import Run

# Exit codes of a part's process.
FINISHED, OUT_OF_TIME, DEVICE_LOST = 0, 3, 4


class Part(NamedTuple):
    """A part: what it answers, and the module whose `run` measures it."""

    title: str
    module: str

    def measure(self, run: "Run") -> None:
        measure: Callable[[Run], None] = import_module(f"benchmarks.gpu.{self.module}").run
        measure(run)


PARTS: dict[int, Part] = {
    1: Part("What the machine has, and whether every kernel compiles", "smoke"),
    2: Part("Whether every kernel is right: tests/kernels/cases", "cases"),
    3: Part("Kernels against their floors and against others", "sweep"),
    4: Part("The engine alone, on models of random weights", "engine"),
    5: Part("The whole server under load", "served"),
    6: Part("Sanitizer and profilers", "inspection"),
    7: Part("The whole server with drafts and without", "drafts"),
}
