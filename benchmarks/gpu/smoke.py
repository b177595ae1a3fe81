"""Part 1: what the machine has, what it can do at best, and whether every kernel compiles for it."""

import importlib
import json
import platform
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.floors import rates
from benchmarks.gpu.lines import Result
from benchmarks.gpu.origin import ROOT, manifest
from benchmarks.gpu.run import OutOfTime, Run, cores
from benchmarks.server import BIN

# The modules that a shard imports and torch does not bring; then the packages and programs of a server.
_IMPORTS = ("grpc", "grpc_health.v1.health", "google.protobuf", "llguidance", "safetensors", "pytest")
_PACKAGES = ("penstock_kernels", "penstock_server.load.load_engine", "penstock_server.rpc.service")
_PROGRAMS = ("launcher", "penstock-router", "penstock-bench")
# So many cases are compiled in a rehearsal.
_FEW = ("silu_mul",)


def run(run: Run) -> None:
    run.measure("machine", partial(_machine, run))
    for name in (*_IMPORTS, *_PACKAGES):
        run.measure(f"import {name}", partial(_import, name))
    for program in _PROGRAMS:
        run.measure(f"start {program}", partial(_start, program))
    run.measure("the op in C", _library)
    run.measure("best rates", partial(_rates, run.device))
    _compile_all(run)


def _machine(run: Run) -> list[Result]:
    """Describes the machine in the note; the number is that of the cores."""
    import triton

    versions = f"Python {platform.python_version()}, torch {torch.__version__}, Triton {triton.__version__}"
    found = [
        versions,
        _gpu() if run.device == "cuda" else run.origin.device,
        f"glibc {platform.libc_ver()[1]}",
    ]
    found.append(f"carried: {json.dumps(manifest().get('wheels', 'nothing'))}")
    return [Result("cores", cores(), note="; ".join(found))]


def _gpu() -> str:
    facts = torch.cuda.get_device_properties(0)
    return (
        f"{facts.name}, {facts.multi_processor_count} SMs, {facts.total_memory / 2**30:.0f} GiB, "
        f"sm_{facts.major}{facts.minor}, CUDA {torch.version.cuda}, driver {_driver()}"
    )


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    return path.read_text().splitlines()[0] if path.exists() else "unknown"


def _import(name: str) -> list[Result]:
    begun = time.perf_counter()
    module: Any = importlib.import_module(name)
    version = getattr(module, "__version__", "")
    return [Result("import", time.perf_counter() - begun, "s", note=f"{version} {module.__file__}".strip())]


def _start(program: str) -> list[Result]:
    begun = time.perf_counter()
    said = subprocess.run(
        [BIN / program, "--version"], capture_output=True, text=True, check=False, timeout=60
    )
    if said.returncode != 0:
        raise RuntimeError(f"it ended with {said.returncode}: {said.stderr.strip()[-300:]}")
    return [Result("start", time.perf_counter() - begun, "s", note=said.stdout.strip())]


def _library() -> list[Result]:
    from penstock_kernels.native.library import library

    if library() is None:
        raise RuntimeError("it was not carried, or does not load here")
    return [Result("loaded", 1)]


def _rates(device: str) -> list[Result]:
    best = rates(device)
    return [
        Result("large copy, read and written", best.copy / 1e9, "GB/s"),
        Result("large bf16 product", best.product / 1e12, "Tflop/s"),
    ]


def _compile_all(run: Run) -> None:
    """Every configuration of `kernels/resources.py`, on all cores."""
    with ProcessPoolExecutor(1 if run.rehearse else cores(), mp_context=get_context("spawn")) as pool:
        jobs = [job for job in pool.submit(_jobs).result() if not run.rehearse or job[0] in _FEW]
        missing = [job for job in jobs if not run.has(_compile_name(job)) and run.match in _compile_name(job)]
        running = {pool.submit(_compile, job): job for job in missing}
        try:
            for done in as_completed(running, timeout=run.seconds_left):
                run.add(_compile_name(running[done]), [_compiled(done)])
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
            raise OutOfTime from None


def _compile_name(job: tuple[str, str]) -> str:
    return f"compile {job[0]}"


def _jobs() -> list[tuple[str, str]]:
    """The cases of this device's capability; of sm_90 where it has none of its own."""
    resources = _resources()
    own = "sm_{}{}".format(*torch.cuda.get_device_capability()) if torch.cuda.is_available() else ""
    capability = own if own in resources.CAPABILITIES else "sm_90"
    return [job for job in resources._jobs([]) if job[1] == capability]


def _compile(job: tuple[str, str]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds, and a row for every kernel that the case launches."""
    begun = time.perf_counter()
    rows = _resources()._compile(job)
    return time.perf_counter() - begun, rows


def _resources() -> Any:
    sys.path.insert(0, str(ROOT / "kernels"))
    return importlib.import_module("resources")


def _compiled(done: "Future[tuple[float, list[dict[str, Any]]]]") -> Result:
    error = done.exception()
    if error is not None:
        return Result("compiled", None, error=str(error)[-600:])
    seconds, rows = done.result()
    spilled = [row["kernel"] for row in rows if row["spill_bytes"]]
    note = f"{len(rows)} kernels, at most {max(row['registers'] for row in rows)} registers"
    return Result(
        "compiled", seconds, "s", note=note + (f"; spills: {', '.join(spilled)}" if spilled else "")
    )
