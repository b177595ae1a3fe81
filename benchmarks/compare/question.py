"""The comparison: every server gets every load in turn, several times, with the same models."""

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.compare import load, models
from benchmarks.compare.load import Load, Measured
from benchmarks.compare.rival import THREADS, Running, url
from benchmarks.compare.servers import MOST_AT_ONCE, Absent, Contender, contenders
from benchmarks.compare.summary import Runs, summarise
from benchmarks.figure import Figure

TITLE = (
    "Beside transformers' continuous batching and llama.cpp's server "
    f"({load.INPUT_LEN} tokens in, {load.OUTPUT_LEN} out, CPU)"
)
_MODELS = {"demo model": models.demo, "110M Llama": models.llama_110m}
_CONCURRENCY = (1, 8, MOST_AT_ONCE)
_REPEATS = 3
_FEWEST_REQUESTS = 4
_QUESTION = "What is 12 + 30?"
_SAME_TOKENS = 16


class Served(NamedTuple):
    """A running server, and the model that it serves."""

    contender: Contender
    running: Running
    model: Path

    def measure(self, concurrency: int, repeat: int) -> Measured:
        """Seeds differ between repeats, so that no prompt is in a cache; within a repeat every server gets the same."""
        requests = Load(concurrency, max(_FEWEST_REQUESTS, concurrency), 100 * repeat + concurrency)
        return load.run(url(self.running), self.model, requests, *self.contender.flags)


def measure() -> list[Figure]:
    """Servers that are not installed are listed with the reason, and left out."""
    everyone = contenders()
    present = [it for it in everyone if isinstance(it, Contender)]
    figures = [setting(everyone)]
    for name, make in _MODELS.items():
        with TemporaryDirectory() as folder, ExitStack() as stack:
            make(Path(folder))
            served = [_start(contender, Path(folder), stack) for contender in present]
            check_agreement({it.contender.name: _answer(it) for it in served if it.contender.is_exact})
            figures += summarise(name, present, _runs(served), models.count(Path(folder)))
    return figures


def setting(everyone: list[Contender | Absent]) -> Figure:
    """The servers that were measured, and those that were left out."""
    return Figure("threads of each server", THREADS, note="; ".join(_describe(it) for it in everyone))


def _describe(it: Contender | Absent) -> str:
    return f"{it.name} {it.version}" if isinstance(it, Contender) else f"no {it.name}: {it.reason}"


def _start(contender: Contender, model: Path, stack: ExitStack) -> Served:
    return Served(contender, stack.enter_context(contender.start(model)), model)


def _answer(served: Served) -> str:
    """A greedy output, short enough that rounding does not change its tokens."""
    body = {"model": str(served.model), "prompt": _QUESTION, "max_tokens": _SAME_TOKENS, "temperature": 0}
    request = urllib.request.Request(
        f"{url(served.running)}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: Any = json.load(response)
    return str(answer["choices"][0]["text"])


def check_agreement(answers: dict[str, str]) -> None:
    """Fails if the servers' outputs differ: a server that computes something else cannot be compared."""
    if len(set(answers.values())) > 1:
        raise ValueError(f"the servers' greedy answers differ: {answers}")


def _runs(served: list[Served]) -> Runs:
    """All servers stay up, and one at a time gets requests; other load of the machine affects all of them alike."""
    for it in served:
        it.measure(MOST_AT_ONCE // 2, _REPEATS)
    runs: Runs = {}
    for repeat in range(_REPEATS):
        for concurrency in _CONCURRENCY:
            for it in served:
                measured = it.measure(concurrency, repeat)
                runs.setdefault((concurrency, it.contender.name), []).append(measured)
    return runs
