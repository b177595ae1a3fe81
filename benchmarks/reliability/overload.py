"""Ten times more requests than the server can complete."""

import time
from concurrent.futures import ThreadPoolExecutor

from e2e.clients import COMPLETE, ERROR, Record, Traffic, make_body
from e2e.faults import router
from e2e.launched import Launched

from benchmarks.figure import Figure, percentile
from benchmarks.reliability import served
from benchmarks.reliability.memory import resident_mib

_NUM_PLACES = 8
_TIMES = 10
_BODIES = [make_body(3000 + number, 60) for number in range(8)]


def measure(seconds: float) -> list[Figure]:
    """First as many clients as the server accepts, then an open loop at ten times the rate they reach."""
    with served.tiny(max_concurrent=_NUM_PLACES) as server:
        peak = _peak(server, seconds)
        before = resident_mib(router(server))
        records = _flood(server, peak * _TIMES, seconds)
        growth = resident_mib(router(server)) - before
    refused = [record for record in records if record.end == ERROR]
    wrong = [record for record in refused if (record.error or {}).get("error_type") != "overloaded"]
    times = [1e3 * (record.ended_at - record.started_at) for record in refused]
    goodput = 100 * _rate(records) / peak
    offered = f"{peak * _TIMES:.0f} requests/s offered, {peak:.1f} answered without overload"
    return [
        Figure("10x overload: goodput of peak", goodput, "%", at_least=90, note=offered),
        Figure("10x overload: p50 of a refusal", percentile(times, 50), "ms", at_most=20),
        Figure(
            "10x overload: p99 of a refusal",
            percentile(times, 99),
            "ms",
            note="with the client's own threads",
        ),
        Figure(
            "10x overload: errors that are no 429", len(wrong), at_most=0, note=f"of {len(refused)} refusals"
        ),
        Figure("10x overload: growth of the router", growth, "MiB", at_most=10),
    ]


def _peak(server: Launched, seconds: float) -> float:
    with Traffic(server, _NUM_PLACES, lambda dice: Record(dice.choice(_BODIES))) as traffic:
        time.sleep(seconds)
    return _rate(traffic.records)


def _flood(server: Launched, rate: float, seconds: float) -> list[Record]:
    """Sends requests at a fixed rate, however they end."""
    records = [Record(_BODIES[number % len(_BODIES)]) for number in range(int(rate * seconds))]
    started = time.monotonic()
    with ThreadPoolExecutor(4 * _NUM_PLACES) as pool:
        for number, record in enumerate(records):
            time.sleep(max(0.0, started + number / rate - time.monotonic()))
            pool.submit(record.run, server)
    return records


def _rate(records: list[Record]) -> float:
    """Complete requests a second."""
    complete = [record for record in records if record.end == COMPLETE]
    started = min(record.started_at for record in records)
    return len(complete) / (max(record.ended_at for record in complete) - started)
