"""Availability: clients that never stop, and a random fault every ten seconds."""

import time
from collections import Counter
from random import Random

from e2e import faults
from e2e.clients import BROKEN, COMPLETE, ERROR, SILENT, Record, Traffic, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle, check_nothing_is_left

from benchmarks.figure import Figure
from benchmarks.reliability import served

TITLE = "A random fault every 10 seconds (two shards killed, stopped, hung or lying; the router killed or stopped)"
_FAULT_EVERY_S = 10.0
_NUM_CLIENTS = 8
# The output that each prompt gets alone is requested once.
_BODIES = [make_body(2000 + number, 10 + 8 * number, number or None) for number in range(10)]
# Time until the launcher has noticed a stopped router and replaced it.
_ROUTER_GONE_S = 20.0
_LOOK_EVERY_S = 0.2


def measure(minutes: float, seed: int = 0) -> list[Figure]:
    """`seed` determines faults and requests; when requests arrive depends on the machine."""
    with served.tiny() as server:
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(_BODIES)
        with Traffic(server, _NUM_CLIENTS, lambda dice: Record(dice.choice(_BODIES))) as traffic:
            harm = Harm(server, Random(f"availability {seed}"))
            harm.run(minutes * 60, traffic)
        faults.wait_until_ready(server)
        oracle.begin()
        server.process.terminate()
        code, _ = server.end()
        assert code == 0, f"it ended with {code}"
        check_nothing_is_left(server)
    return _figures(traffic.records, oracle, harm)


class Harm:
    """Injects a fault every few seconds, and polls whether the server is ready."""

    def __init__(self, server: Launched, dice: Random) -> None:
        self._server = server
        self._dice = dice
        self.done: Counter[str] = Counter()
        self.router_harmed_at: list[float] = []
        self.looks: list[bool] = []

    def run(self, duration_s: float, traffic: Traffic) -> None:
        """Injects faults until the time is over."""
        started = time.monotonic()
        for number in range(int(duration_s / _FAULT_EVERY_S)):
            name = self._harm()
            ends = Counter(record.end for record in traffic.records)
            print(f"{number * _FAULT_EVERY_S:.0f} s: {name}; until now {dict(ends)}", flush=True)
            self._look_until(started + (number + 1) * _FAULT_EVERY_S)

    def _harm(self) -> str:
        name = self._dice.choice(sorted(faults.RANDOM))
        # Noted before the fault, because connections break before this thread continues.
        at = time.monotonic()
        try:
            faults.RANDOM[name](self._server)
        except ProcessLookupError:
            # The process has just died of the previous fault.
            return f"{name}, gone already"
        self.done[name] += 1
        if "router" in name:
            self.router_harmed_at.append(at)
        return name

    def _look_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.looks.append(faults.is_ready(self._server))
            time.sleep(_LOOK_EVERY_S)

    def explains(self, record: Record) -> bool:
        """Whether a fault of the router so shortly before explains that this connection broke."""
        return any(0 <= record.ended_at - at < _ROUTER_GONE_S for at in self.router_harmed_at)


def _figures(records: list[Record], oracle: Oracle, harm: Harm) -> list[Figure]:
    ends = Counter(record.end for record in records)
    wrong = [record for record in records if not oracle.is_right(record)]
    unexplained = [record for record in records if record.end == BROKEN and not harm.explains(record)]
    for record in [*wrong, *unexplained, *(record for record in records if record.end == SILENT)][:10]:
        print(f"not as it should be: {record}", flush=True)
    explicit = ends[COMPLETE] + ends[ERROR] + ends[BROKEN] - len(unexplained)
    kinds = Counter(record.error["error_type"] for record in records if record.error)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    how = f"errors: {counts}; {ends[BROKEN]} connections that broke with the router"
    return [
        Figure("requests that complete", 100 * ends[COMPLETE] / len(records), "%", at_least=95),
        Figure("requests that end explicitly", 100 * explicit / len(records), "%", at_least=100, note=how),
        Figure(
            "requests with a wrong token", len(wrong), at_most=0, note=f"of {len(records):,}, to solo runs"
        ),
        Figure("faults", harm.done.total(), note=f"of {len(harm.done)} kinds"),
        Figure("of the time ready", 100 * sum(harm.looks) / max(1, len(harm.looks)), "%"),
    ]
