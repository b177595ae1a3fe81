"""Four replicas behind one router, or four servers behind a proxy: placed by prefix, beside round robin.

Routers and their wires are real. The shards are fake (`benchmarks/router`): a step takes a fixed time, and more for
each token, because four real ones on two cores would measure these cores. Routers decide what is cached, so hits
are real. A router knows what its replicas hold; the proxy guesses what its servers do.
"""

import json
import subprocess
import tempfile
from statistics import median
from typing import NamedTuple

from benchmarks.figure import Figure
from benchmarks.replicas.cluster import DEMO_MODEL, NUM_REPLICAS, STEP_US, TOKEN_US, Cluster
from benchmarks.server import BIN

TITLE = f"{NUM_REPLICAS} replicas: placed by what they hold, beside round robin (shards without a model)"
PROXY_TITLE = (
    f"{NUM_REPLICAS} servers behind the proxy: placed by guess, beside round robin (shards without a model)"
)
_REPEATS = 3
_POLICIES = ("prefix", "round-robin")
# Half of what the prefixes or the conversations of the load take together.
_TIGHT_BLOCKS = 750
_OUTPUT = "--output-len=32"


class _Load(NamedTuple):
    name: str
    flags: tuple[str, ...]
    # Whether prompts begin as others did.
    has_shared: bool


# The number of prefixes has no factor in common with that of replicas: else taking turns would sort them by chance.
_LOADS = (
    _Load(
        "conversations of 6 turns",
        ("--turns=6", "--input-len=200", "--concurrency=40", "--num-requests=120", "--think-time=1s"),
        True,
    ),
    _Load(
        "31 shared prefixes of 800 tokens",
        ("--prefix-len=800", "--num-prefixes=31", "--input-len=100", "--rate=12", "--num-requests=400"),
        True,
    ),
    _Load(
        "nothing shared, 300 to 900 tokens",
        ("--input-len=600", "--range-ratio=0.5", "--rate=10", "--num-requests=300"),
        False,
    ),
)


class _Measured(NamedTuple):
    hit_rate: float
    ttft_p50_ms: float
    ttft_p99_ms: float


def measure(has_proxy: bool = False) -> list[Figure]:
    """Both policies in turn, each with empty caches, under each load."""
    return [figure for load in _LOADS for figure in _figures(load, has_proxy)]


def _figures(load: _Load, has_proxy: bool) -> list[Figure]:
    seeds = range(1, 1 + _REPEATS)
    pairs = [tuple(_run(policy, load, seed, has_proxy) for policy in _POLICIES) for seed in seeds]
    ours, theirs = zip(*pairs, strict=True)
    shares = [one.ttft_p50_ms / other.ttft_p50_ms for one, other in pairs]
    at_most = 0.6 if load.has_shared else 1.03
    figures = [
        Figure(
            f"{load.name}: p50 to the first token over that of round robin",
            median(shares),
            at_most=at_most,
            note=f"median of {_REPEATS}, {min(shares):.2f} to {max(shares):.2f}; {_times(ours)}, "
            f"round robin {_times(theirs)}; a step takes {STEP_US // 1000} ms and {TOKEN_US / 1000:g} ms a token",
        )
    ]
    if load.has_shared:
        gains = [one.hit_rate / other.hit_rate for one, other in pairs]
        hits = [f"{100 * median(it.hit_rate for it in runs):.0f} %" for runs in (ours, theirs)]
        note = f"{min(gains):.2f} to {max(gains):.2f}; {hits[0]} and {hits[1]} of prompt tokens were cached"
        name = f"{load.name}: hits over those of round robin"
        figures.append(Figure(name, median(gains), at_least=1.8, note=note))
    return figures


def _times(runs: tuple[_Measured, ...]) -> str:
    p50, p99 = (median(values) for values in zip(*(run[1:] for run in runs), strict=True))
    return f"{p50:.0f} ms (p99 {p99:.0f})"


def _run(policy: str, load: _Load, seed: int, has_proxy: bool) -> _Measured:
    cluster = Cluster(policy, _TIGHT_BLOCKS, has_proxy)
    with cluster, tempfile.NamedTemporaryFile(suffix=".json") as output:
        bench = [
            str(BIN / "penstock-bench"),
            "run",
            "--quiet",
            f"--url={cluster.url}",
            _OUTPUT,
            "--ignore-eos",
        ]
        where = [f"--tokenizer={DEMO_MODEL}", f"--seed={seed}", f"--output={output.name}"]
        subprocess.run([*bench, *where, *load.flags], check=True, stdout=subprocess.DEVNULL)
        summary = json.load(output)["runs"][0]["summary"]
    if summary["requests"]["completed"] != summary["requests"]["total"]:
        raise ValueError(f"requests failed: {summary['errors']}")
    tokens, ttft = summary["tokens"], summary["latency_ms"]["ttft"]
    return _Measured(tokens["cached_input"] / tokens["input"], ttft["p50"], ttft["p99"])
