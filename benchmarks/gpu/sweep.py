"""Part 3: every kernel in the sizes of large models, as the device spends its time, beside its floor and its rivals.

The floor is the time of the bytes and flop that the op needs, at the rates of a copy and a product of the same run.
Inputs are random. Where a case of the op's tests failed in part 2, the note of its line says so.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.clock import time_call
from benchmarks.gpu.floors import rates
from benchmarks.gpu.lines import Result
from benchmarks.gpu.once import Once
from benchmarks.gpu.run import Run, release

if TYPE_CHECKING:
    from benchmarks.gpu.works import Call, Case, Work


def run(run: Run) -> None:
    if run.rehearse:
        _interpret()
    from benchmarks.gpu import attention_works, latent_works, op_works, recurrent_works
    from benchmarks.gpu.works import REAL, TINY

    sizes = TINY if run.rehearse else REAL
    works = attention_works, latent_works, op_works, recurrent_works
    for case in (case for work in works for case in work.cases(sizes)):
        _measure(run, case)
        release()


def _interpret() -> None:
    """The kernels, once they are imported, by the interpreter of the cases."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.append(str(CASES))
    interpreter = importlib.import_module("interpreter")
    interpreter.repair()
    interpreter.speed_up()


def _measure(run: Run, case: "Case") -> None:
    """The op, then each of its rivals; inputs are made once, when the first of them is measured."""
    work = Once(case.make)
    run.measure(case.name, lambda: [_timed(run, work(), lambda: work().run, _doubts(run, case.tests))])
    for rival in case.rivals:
        run.measure(case.name, partial(_timed_rival, run, work, rival), by=rival)


def _timed_rival(run: Run, work: "Callable[[], Work]", rival: str) -> list[Result]:
    from penstock_kernels.backends import Unsupported

    try:
        return [_timed(run, work(), work().rivals[rival])]
    except Unsupported as reason:
        return [Result("time", None, note=f"not here: {reason}")]


def _timed(run: Run, work: "Work", make: "Callable[[], Call]", doubts: str = "") -> Result:
    floor = rates(run.device).floor_us(work.num_bytes, work.flops)
    time = time_call(make(), run.device)
    return Result("time", time.median, "us", floor, note="; ".join(filter(None, (time.note, doubts))))


def _doubts(run: Run, tests: str) -> str:
    """Which cases of an op failed, if they were run."""
    lines = [line for line in run.lines.read() if line.origin == run.origin and line.task.part == 2]
    failed = {line.task.name for line in lines if f"/{tests}::" in line.task.name and line.result.error}
    if not lines:
        return "cases not run"
    return f"{len(failed)} CASES FAIL, such as {min(failed)}" if failed else ""
