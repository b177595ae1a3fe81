"""Compiles kernels for this device, on all cores, a line for each: what the engines of part 4 launch, the
configurations of `kernels/resources.py`, and what was launched in the tests before the tree was packed.

Most valuable first. What is compiled here Triton finds on disk when other parts launch it.
"""

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock
from zlib import crc32

import torch

from benchmarks.gpu.lines import Result
from benchmarks.gpu.origin import CARRIED, ROOT
from benchmarks.gpu.run import OutOfTime, Run, cores, release

# Written by `pack`.
CARRIED_VARIANTS = CARRIED / "variants.txt"
# So many engines are recorded in a rehearsal, and so many variants of each kind compiled.
_FEW = 1
_SPAWN = get_context("spawn")


class Target(NamedTuple):
    """The device that kernels are compiled for: its capability, such as 90, and what tiles depend on."""

    capability: int
    num_multiprocessors: int
    shared_bytes: int


class Outcome(NamedTuple):
    """Of one job: the seconds, what is to be known of it, and what is wrong."""

    seconds: float
    note: str
    error: str = ""


Job = Callable[[], Outcome]


def compile_all(run: Run) -> None:
    """Adds a line for each job. One process holds the device, and records; the others compile meanwhile."""
    target, running = _target(), dict[Future[Outcome], str]()
    with (
        ProcessPoolExecutor(1, mp_context=_SPAWN) as recorder,
        ProcessPoolExecutor(1 if run.rehearse else cores(), mp_context=_SPAWN) as pool,
    ):
        try:
            for name, job in _jobs(run, target, recorder, pool):
                if not run.has(name) and run.match in name:
                    running[pool.submit(job)] = name
                for done in [it for it in running if it.done()]:
                    run.add(running.pop(done), [_result(done)])
            for done in as_completed(running, timeout=max(run.seconds_left, 0)):
                run.add(running[done], [_result(done)])
        except (OutOfTime, TimeoutError):
            pool.shutdown(wait=False, cancel_futures=True)
            raise OutOfTime from None


def _target() -> Target:
    if not torch.cuda.is_available():
        return Target(90, 132, 232_448)
    facts = torch.cuda.get_device_properties(0)
    shared: int = facts.shared_memory_per_block_optin
    return Target(10 * facts.major + facts.minor, facts.multi_processor_count, shared)


def _jobs(
    run: Run, target: Target, recorder: ProcessPoolExecutor, pool: ProcessPoolExecutor
) -> Iterator[tuple[str, Job]]:
    """What must go on when the device has ended the recorder is asked of the other processes."""
    most = _FEW if run.rehearse else None
    known: set[str] = set()

    def of_variants(lines: list[str]) -> Iterator[tuple[str, Job]]:
        new = [line for line in lines if line not in known][:most]
        known.update(new)
        yield from ((_name_of(line), partial(_compile_variant, line, target)) for line in new)

    for number, title in enumerate(recorder.submit(_titles, run.rehearse).result()[:most]):
        yield from of_variants(_recorded(run, f"variants of {title}", recorder, number))
    for case in pool.submit(_cases, target.capability).result()[:most]:
        yield f"compile {case}", partial(_compile_case, case, target)
    yield from of_variants(pool.submit(_carried, target.capability).result())


def _recorded(run: Run, name: str, recorder: ProcessPoolExecutor, number: int) -> list[str]:
    """The variants of an engine. One that cannot be loaded has a line with the error, and no variants."""
    found: list[str] = []

    def record() -> list[Result]:
        found.extend(recorder.submit(_record, number, run.rehearse).result())
        return [Result("variants", len(found))]

    if run.has(name):  # but what it launches may not be compiled yet
        with suppress(Exception):
            record()
    else:
        run.measure(name, record)
    return found


# In other processes


def _settings(rehearse: bool) -> list[tuple[str, Any, bool]]:
    """Of the engines of part 4: title, setting, and whether kernels are chained."""
    from benchmarks.gpu.engine import settings

    return settings(rehearse)


def _titles(rehearse: bool) -> list[str]:
    return [f"{setting.model}, {title}" for title, setting, _ in _settings(rehearse)]


class _Enough(Exception):
    """All variants of an engine are recorded, so it need not start."""


def _record(number: int, rehearse: bool) -> list[str]:
    """The variants that an engine needs, a line each. It is loaded up to the compilation of its kernels."""
    from benchmarks.gpu.engine import chaining, load_bench

    _find_tests()
    from kernel_variants.recorder import recording_only
    from kernel_variants.variant import to_line
    from penstock_server.engine.rehearsal import Rehearsal
    from penstock_server.load.kernels import compile_kernels

    _, setting, is_chained = _settings(rehearse)[number]
    device = "cpu" if rehearse else "cuda"

    def compile_only(*given: Any) -> None:
        compile_kernels(*given)
        raise _Enough

    with (
        recording_only() as seen,
        chaining(device) if is_chained else nullcontext(),
        mock.patch("penstock_server.load.load_engine.compile_kernels", compile_only),
        suppress(_Enough),
    ):
        Rehearsal(load_bench(setting, device).engine).compile()
    release()
    return sorted(map(to_line, seen))


def _compile_variant(line: str, target: Target) -> Outcome:
    _find_tests()
    from kernel_variants.compiler import compile_variant
    from kernel_variants.variant import from_line

    begun, variant = time.perf_counter(), from_line(line)
    found = compile_variant(variant, target.capability, target.shared_bytes)
    note = f"{found.registers} registers; {variant.label}"
    return Outcome(time.perf_counter() - begun, note[:600], (found.complaint or "")[:1200])


def _cases(capability: int) -> list[str]:
    names: list[str] = _resources().cases_of(capability)
    return names


def _compile_case(name: str, target: Target) -> Outcome:
    from penstock_kernels.gpu.tiles import Processor

    begun = time.perf_counter()
    chip = Processor(target.num_multiprocessors, target.shared_bytes)
    rows = _resources().compile_case(name, target.capability, chip)
    spilled = [row["kernel"] for row in rows if row["spill_bytes"]]
    note = f"{len(rows)} kernels, at most {max(row['registers'] for row in rows)} registers"
    note += f"; spills: {', '.join(spilled)}" if spilled else ""
    return Outcome(time.perf_counter() - begun, note)


def _carried(capability: int) -> list[str]:
    """The carried variants that such a device could be asked for."""
    if not CARRIED_VARIANTS.exists():
        return []
    _find_tests()
    from kernel_variants.compiler import possible_on
    from kernel_variants.recorder import read
    from kernel_variants.variant import to_line

    return list(map(to_line, possible_on(read(CARRIED_VARIANTS), capability)))


def _name_of(line: str) -> str:
    """The kernel, and a number that stays the same for a variant."""
    kernel = line.split('"', 4)[3]
    return f"compile {kernel} {crc32(line.encode()):08x}"


def _resources() -> Any:
    _find(ROOT / "kernels")
    return importlib.import_module("resources")


def _find_tests() -> None:
    _find(ROOT / "tests")


def _find(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _result(done: "Future[Outcome]") -> Result:
    error = done.exception()
    if error is not None:
        return Result("compiled", None, error=f"{type(error).__name__}: {error}"[-600:])
    seconds, note, wrong = done.result()
    return Result("compiled", None if wrong else seconds, "s", note=note, error=wrong)
