"""Time from the command to the demo model's first token, how it is spent, and what a GPU adds: compiled kernels."""

import asyncio
import json
import re
import tempfile
from statistics import median

import torch

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.streams import complete

TITLE = "From `launcher` to the first token (demo model, CPU)"
_REPEATS = 3
_TOOK = re.compile(r"^(import|weights|warm-up) took ([\d.]+) s")


def measure() -> list[Figure]:
    """Medians; the first start, which fills the page cache, is left out."""
    _run()
    runs = [_run() for _ in range(_REPEATS)]
    note = f"median of {_REPEATS} starts; slowest {max(run['total'] for run in runs):.2f} s"
    total = Figure("first token after the command", _middle(runs, "total"), "s", at_most=6, note=note)
    stages = [name for name in runs[0] if name != "total"]
    return [
        total,
        *(Figure(f"… of which {name}", _middle(runs, name), "s") for name in stages),
        *_starts_on_a_gpu(),
    ]


def _starts_on_a_gpu() -> list[Figure]:
    """The first start compiles the kernels, the second finds them on disk."""
    names = ("ready on a GPU at the first start", "… at the second, with the kernels on disk")
    if not torch.cuda.is_available():
        return [Figure(name, None, note="needs a GPU") for name in names]
    with tempfile.TemporaryDirectory() as folder:
        return [Figure(name, _ready_on_a_gpu(folder), "s") for name in names]


def _ready_on_a_gpu(kernels: str) -> float:
    with Server("--json-output", device="cuda", TRITON_CACHE_DIR=kernels) as server:
        return _when(server.lines, "Serving")


def _middle(runs: list[dict[str, float]], name: str) -> float:
    return median(run[name] for run in runs)


def _run() -> dict[str, float]:
    with Server("--json-output") as server:
        stream = asyncio.run(complete(server.address, "What is 12 + 30?", 1))
        stages = _stages([(at, json.loads(line)["message"]) for at, line in server.lines])
        return {**stages, "the first token": stream.ttft, "total": stream.at[0] - server.started}


def _stages(lines: list[tuple[float, str]]) -> dict[str, float]:
    """The shard logs the durations of its stages; the others are the times between lines of the launcher."""
    took = {found[1]: float(found[2]) for _, message in lines if (found := _TOOK.match(message))}
    resolved, shards, router = (_when(lines, text) for text in ("model is in", "Shards are", "Router is"))
    logged = took["import"] + took["weights"] + took["warm-up"]
    return {
        "finding the model": resolved,
        "importing torch": took["import"],
        "weights": took["weights"],
        "warm-up": took["warm-up"],
        "starting Python, checking files, health": shards - resolved - logged,
        "the router": router - shards,
    }


def _when(lines: list[tuple[float, str]], text: str) -> float:
    return next(when for when, message in lines if text in message)
