"""Figures of the benchmarks in Rust: the scheduler alone, and the router over a shard without a model."""

import json
import os
import re
import subprocess
from typing import Any

from benchmarks.figure import Figure
from benchmarks.server import BIN

_PLAN = re.compile(r"(\d+) blocks, 256 running, (\d+) waiting: plan\(\) median ([\d.]+) us, p99 ([\d.]+) us")
_LOOKUP = re.compile(r"(\d+) cached blocks: lookup of 2,000 tokens median ([\d.]+) us, p99 ([\d.]+) us")
_SCALE = re.compile(
    r"(\d+) replicas: 2000 tokens placed in median ([\d.]+) us known, ([\d.]+) us new; "
    r"step of 32 rows median ([\d.]+) us; (.*); -?\d+ KiB"
)
_SHAPE = re.compile(
    r"^([\d.]+ requests/s, \w+).*\n *penstock (.*)\n *first come, first served (.*)", re.MULTILINE
)
_SERVED = re.compile(r"TTFT p50 +(\d+) p99 +(\d+) ms, worst gap p50 +(\d+) p99 +(\d+) ms, .* ([\d.]+) %")


def scheduler() -> list[Figure]:
    """`benchmarks/scheduler`: times, and the policy compared with plain first-come first-served batching."""
    report = _bench("penstock-scheduler", "scheduler")
    plans = [
        _micros(f"plan(), 256 running, {waiting} waiting, {int(blocks):,} blocks", median, p99, 100)
        for blocks, waiting, median, p99 in _PLAN.findall(report)
    ]
    lookups = [
        _micros(f"lookup of 2,000 tokens, {int(blocks):,} cached blocks", median, p99, 10)
        for blocks, median, p99 in _LOOKUP.findall(report)
    ]
    scales = [figure for found in reversed(_SCALE.findall(report)) for figure in _scale(*found)]
    return plans + lookups + scales + [_shape(*found) for found in _SHAPE.findall(report)]


def _scale(replicas: str, known: str, new: str, step: str, load: str) -> list[Figure]:
    where = f"{int(replicas):,} replicas"
    return [
        Figure(
            f"{where}: placing 2,000 tokens", float(new), "µs", note=f"median; {known} µs where one has them"
        ),
        Figure(f"{where}: plan and outcome of 32 rows", float(step), "µs", note=f"median; in all {load}"),
    ]


def _micros(name: str, median: str, p99: str, at_most: float) -> Figure:
    return Figure(name, float(median), "µs", at_most=at_most, note=f"median; p99 {p99} µs")


def _shape(name: str, ours: str, theirs: str) -> Figure:
    share, note = _served(ours)
    other_share, other_note = _served(theirs)
    note = f"{note}; first come, first served: {other_share:g} %, {other_note}"
    return Figure(f"{name}: within limits", share, "%", note=note)


def _served(line: str) -> tuple[float, str]:
    found = _SERVED.search(line)
    assert found, line
    return float(found[5]), f"TTFT p99 {found[2]} ms, worst gap p99 {found[4]} ms"


def router() -> list[Figure]:
    """`benchmarks/router`: the time that the router adds to a request."""
    rows = [json.loads(line) for line in _bench("penstock-router", "router", "--json").splitlines()]
    return [figure for row in rows for figure in _router_figures(row)]


def _router_figures(row: dict[str, Any]) -> list[Figure]:
    name = row["name"]
    p50_floor, p99_floor = _ROUTER_FLOORS.get(name, (None, None))
    cost = ""
    if "router_cores" in row:
        cost = f"router: {row['router_cores']:.2f} cores, {row['router_peak_mib']:.0f} MiB at most"
    rate = f"{row['requests_per_s']:,.0f} requests/s; " if "requests_per_s" in row else ""
    return [
        Figure(f"{name}: p50", row["p50_ms"], "ms", at_most=p50_floor, note=rate + cost),
        Figure(f"{name}: p99", row["p99_ms"], "ms", at_most=p99_floor),
    ]


# p50 and p99 in milliseconds.
_ROUTER_FLOORS = {
    "64 streams, 200 requests/s": (1.0, None),
    "chat of 1,000 tokens, 200 requests/s": (1.0, 5.0),
    "2,000 streams, 10 tokens/s each": (None, 50.0),
}


def _bench(crate: str, name: str, *arguments: str) -> str:
    command = ["cargo", "bench", "--locked", "-q", "-p", crate, "--bench", name, "--", *arguments]
    environment = {**os.environ, "PENSTOCK_ROUTER": str(BIN / "penstock-router")}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
