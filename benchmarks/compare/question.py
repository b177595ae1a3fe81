"""The comparison: every server gets every load in turn, several times, with the same models."""

import json
import sys
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.compare import load, models
from benchmarks.compare.load import LONG_INPUT_LEN, LONG_OUTPUT_LEN, Load, Measured
from benchmarks.compare.page_cache import forget
from benchmarks.compare.rival import THREADS, DidNotStart, Running, url
from benchmarks.compare.servers import MOST_AT_ONCE, Absent, Contender, contenders
from benchmarks.compare.summary import Runs, summarise
from benchmarks.figure import Figure

_LENGTHS = f"({load.INPUT_LEN} tokens in, {load.OUTPUT_LEN} out, CPU)"
TITLE = f"Beside transformers' continuous batching, llama.cpp's server and OpenVINO {_LENGTHS}"
QUANTIZED_TITLE = f"bfloat16, int8 and int4 of a 500M model beside llama.cpp and OpenVINO {_LENGTHS}"
LARGER_TITLE = f"A 500M model in float32 and bfloat16 beside llama.cpp's server and OpenVINO {_LENGTHS}"
_QUESTION = "What is 12 + 30?"
_SAME_TOKENS = 16


class Comparison(NamedTuple):
    """Which models are served by whom, and how often each load comes."""

    models: dict[str, Callable[[Path], None]]
    # The data types of the servers; None means all.
    dtypes: tuple[str, ...] | None
    repeats: int
    # The fewest requests of a load, which has at least one for each of its streams.
    fewest_requests: int
    concurrency: tuple[int, ...]
    # Rivals that would take most of the time.
    left_out: tuple[str, ...] = ()


ALL = Comparison(
    {"demo model": models.demo, "110M Llama": models.llama_110m},
    ("float32", "bfloat16"),
    3,
    4,
    (1, 8, 16, 32),
)
LARGER = Comparison(
    {"500M Llama": models.llama_500m}, ("float32", "bfloat16"), 3, 2, (1, 8, 16, 32), ("transformers",)
)
# Forty minutes on two slow cores.
QUANTIZED = Comparison({"500M Llama": models.llama_500m}, ("bfloat16", "int8", "int4"), 2, 2, (1, 8, 16))


class Served(NamedTuple):
    """A running server, and the model that it serves."""

    contender: Contender
    running: Running
    model: Path

    def measure(self, requests: Load) -> Measured:
        return load.run(url(self.running), self.model, requests, *self.contender.flags)


def measure(comparison: Comparison = ALL) -> list[Figure]:
    """Servers that are not installed, or do not start, are listed with the reason, and left out."""
    everyone = [it for it in contenders(comparison.dtypes) if it.name not in comparison.left_out]
    present = [it for it in everyone if isinstance(it, Contender)]
    figures: list[Figure] = []
    for name, make in comparison.models.items():
        with TemporaryDirectory() as folder:
            make(Path(folder))
            for file in Path(folder).glob("*.safetensors"):
                forget(file)
            runs: Runs = {}
            for dtype in dict.fromkeys(it.dtype for it in present):
                runs |= _runs_together([it for it in present if it.dtype == dtype], Path(folder), comparison)
            ran = {contender for _, contender in runs}
            measured = [it for it in present if it.name in ran]
            everyone += [
                Absent(f"{it.name} for {name}", "it did not start") for it in present if it not in measured
            ]
            figures += summarise(name, measured, runs, models.count(Path(folder)))
    return [setting(everyone), *figures]


def _runs_together(together: list[Contender], model: Path, comparison: Comparison) -> Runs:
    """Runs only the servers that are compared with each other: all at once need more memory than machines have."""
    with ExitStack() as stack:
        served = [it for contender in together if (it := _started(contender, model, stack))]
        check_agreement({it.contender.name: _answer(it) for it in served if _is_exact(it.contender)})
        return _runs(served, comparison)


def _is_exact(contender: Contender) -> bool:
    return contender.is_exact and contender.dtype == "float32"


def setting(everyone: list[Contender | Absent]) -> Figure:
    """The servers that were measured, and those that were left out."""
    return Figure("threads of each server", THREADS, note="; ".join(_describe(it) for it in everyone))


def _describe(it: Contender | Absent) -> str:
    return f"{it.name} {it.version}" if isinstance(it, Contender) else f"no {it.name}: {it.reason}"


def _started(contender: Contender, model: Path, stack: ExitStack) -> Served | None:
    """None for a rival that does not start: the others are measured all the same."""
    try:
        return _start(contender, model, stack)
    except DidNotStart as error:
        print(f"{contender.name}: {error}", file=sys.stderr, flush=True)
        return None


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


def _runs(served: list[Served], comparison: Comparison) -> Runs:
    """All servers stay up, and one at a time gets requests; other load of the machine affects all of them alike."""
    for it in served:
        it.measure(Load(MOST_AT_ONCE // 2, MOST_AT_ONCE // 2, 100 * comparison.repeats))
    runs: Runs = {}
    for repeat in range(comparison.repeats):
        for where, requests in loads(comparison, repeat).items():
            for it in served:
                runs.setdefault((where, it.contender.name), []).append(it.measure(requests))
    return runs


def loads(comparison: Comparison, repeat: int) -> dict[str, Load]:
    """Seeds differ between repeats, so that no prompt is in a cache; within a repeat every server gets the same."""
    seed, fewest = 100 * repeat, comparison.fewest_requests
    found = {
        f"{number} at once": Load(number, max(fewest, number), seed + number)
        for number in comparison.concurrency
    }
    found[f"a prompt of {LONG_INPUT_LEN} tokens"] = Load(1, 2, seed, LONG_INPUT_LEN, LONG_OUTPUT_LEN)
    return found
