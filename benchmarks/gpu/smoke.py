"""Part 1: what the machine has, what it can do at best, and whether every kernel compiles for it."""

import importlib
import json
import platform
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.compilation import compile_all
from benchmarks.gpu.floors import rates
from benchmarks.gpu.lines import Result
from benchmarks.gpu.origin import manifest
from benchmarks.gpu.run import Run, cores
from benchmarks.server import BIN

# The modules that a shard imports and torch does not bring; then the packages and programs of a server.
_IMPORTS = ("grpc", "grpc_health.v1.health", "google.protobuf", "llguidance", "safetensors", "pytest")
_PACKAGES = ("penstock_kernels", "penstock_server.load.load_engine", "penstock_server.rpc.service")
_PROGRAMS = ("launcher", "penstock-router", "penstock-bench")


def run(run: Run) -> None:
    run.measure("machine", partial(_machine, run))
    for name in (*_IMPORTS, *_PACKAGES):
        run.measure(f"import {name}", partial(_import, name))
    for program in _PROGRAMS:
        run.measure(f"start {program}", partial(_start, program))
    run.measure("the op in C", _library)
    run.measure("best rates", partial(_rates, run.device))
    compile_all(run)


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
