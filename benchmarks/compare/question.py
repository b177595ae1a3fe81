"""The question: every server gets every load in turn, several times over, and the medians of the ratios are told."""

import json
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.compare import load, models
from benchmarks.compare.load import Load, Measured
from benchmarks.compare.rival import THREADS, Running, url
from benchmarks.compare.servers import MOST_AT_ONCE, Absent, Contender, contenders
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

# For each concurrency and name, what was measured in each repeat.
Runs = dict[tuple[int, str], list[Measured]]


class Served(NamedTuple):
    """A contender that runs, and the model that it was given."""

    contender: Contender
    running: Running
    model: Path

    def measure(self, concurrency: int, repeat: int) -> Measured:
        """Seeds differ, so that no prompt is in a cache; in one repeat every server gets the same ones."""
        requests = Load(concurrency, max(_FEWEST_REQUESTS, concurrency), 100 * repeat + concurrency)
        return load.run(url(self.running), self.model, requests, *self.contender.flags)


def measure() -> list[Figure]:
    """Those that are not here are named with the reason, and left out."""
    everyone = contenders()
    present = [it for it in everyone if isinstance(it, Contender)]
    figures = [setting(everyone)]
    for name, make in _MODELS.items():
        with TemporaryDirectory() as folder, ExitStack() as stack:
            make(Path(folder))
            served = [_start(contender, Path(folder), stack) for contender in present]
            check_agreement({it.contender.name: _answer(it) for it in served if _is_exact(it.contender)})
            figures += summarise(name, present, _runs(served))
    return figures


def setting(everyone: list[Contender | Absent]) -> Figure:
    """What took part, and what did not."""
    return Figure("threads of each server", THREADS, note="; ".join(_told(it) for it in everyone))


def _told(it: Contender | Absent) -> str:
    return f"{it.name} {it.version}" if isinstance(it, Contender) else f"no {it.name}: {it.reason}"


def _start(contender: Contender, model: Path, stack: ExitStack) -> Served:
    return Served(contender, stack.enter_context(contender.start(model)), model)


def _is_exact(contender: Contender) -> bool:
    return contender.dtype == "float32"


def _answer(served: Served) -> str:
    """Greedy, and short enough that rounding leads nowhere else."""
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
    """A server that computes something else than the others is not a comparison."""
    if len(set(answers.values())) > 1:
        raise ValueError(f"the servers' greedy answers differ: {answers}")


def _runs(served: list[Served]) -> Runs:
    """All servers stay up, one at a time has work; what else the machine does meets all of them."""
    for it in served:
        it.measure(MOST_AT_ONCE // 2, _REPEATS)
    runs: Runs = {}
    for repeat in range(_REPEATS):
        for concurrency in _CONCURRENCY:
            for it in served:
                measured = it.measure(concurrency, repeat)
                runs.setdefault((concurrency, it.contender.name), []).append(measured)
    return runs


def summarise(model: str, present: list[Contender], runs: Runs) -> list[Figure]:
    """For each concurrency: ours over each rival, then everyone's own figures."""
    figures: list[Figure] = []
    ours = present[0].name
    rivals = [it.name for it in present[1:] if _is_exact(it)]
    for concurrency in sorted({concurrency for concurrency, _ in runs}):
        where = f"{model}, {concurrency} at once"
        figures += [
            _ratio(where, rival, runs[concurrency, ours], runs[concurrency, rival]) for rival in rivals
        ]
        figures += [_own(where, it.name, runs[concurrency, it.name]) for it in present]
    return figures


def _ratio(where: str, rival: str, ours: list[Measured], theirs: list[Measured]) -> Figure:
    ratios = [mine.tokens_per_s / other.tokens_per_s for mine, other in zip(ours, theirs, strict=True)]
    spread = f"median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}"
    worse = behind(middle(ours), middle(theirs))
    note = f"{spread}; **behind in {', '.join(worse)}**" if worse else spread
    return Figure(f"{where}: times the tokens/s of {rival}", median(ratios), at_least=1, note=note)


def _own(where: str, name: str, runs: list[Measured]) -> Figure:
    it = middle(runs)
    note = f"TTFT p50 {it.ttft_p50_ms:.0f} ms, ITL p50 {it.itl_p50_ms:.1f} ms, p99 {it.itl_p99_ms:.1f} ms"
    return Figure(f"{where}: {name}", it.tokens_per_s, "tokens/s", note=note)


def middle(runs: list[Measured]) -> Measured:
    """The median of each figure."""
    return Measured(*(median(values) for values in zip(*runs, strict=True)))


def behind(ours: Measured, theirs: Measured) -> list[str]:
    """The figures in which ours are worse."""
    worse = {
        "tokens/s": ours.tokens_per_s < theirs.tokens_per_s,
        "TTFT p50": ours.ttft_p50_ms > theirs.ttft_p50_ms,
        "ITL p50": ours.itl_p50_ms > theirs.itl_p50_ms,
        "ITL p99": ours.itl_p99_ms > theirs.itl_p99_ms,
    }
    return [name for name, is_worse in worse.items() if is_worse]
