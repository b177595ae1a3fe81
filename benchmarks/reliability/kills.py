"""Every process killed or stopped under load, and the time until the server is ready again."""

import os
import signal
import time

from e2e import faults
from e2e.clients import BROKEN, COMPLETE, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle, check_nothing_is_left

from benchmarks.figure import Figure
from benchmarks.reliability import served

_NUM_STREAMS = 8
_BODIES = [make_body(4000 + number, 150, number or None) for number in range(_NUM_STREAMS)]
_PATIENCE_S = 60.0


def measure() -> list[Figure]:
    """Injects one fault of each kind; the oracle checks the output of the streams."""
    with served.tiny() as server:
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(_BODIES)
        figures = [*_kill_rank(server, oracle), *_stop_rank(server, oracle), *_kill_router(server, oracle)]
        return [*figures, *_kill_launcher(server)]


def _kill_rank(server: Launched, oracle: Oracle) -> list[Figure]:
    ranks = [faults.shard(server, 0), faults.shard(server, 1)]
    oracle.begin()
    with faults.held_load(server, _BODIES) as load:
        faults.kill(ranks[1])
    unready_s = faults.time_until(lambda: not faults.is_ready(server), _PATIENCE_S)
    gone_s = unready_s + faults.time_until(lambda: all(map(faults.is_gone, ranks)), _PATIENCE_S)
    back_s = gone_s + faults.wait_until_ready(server)
    records = load.finish()
    oracle.check(records)
    resumed = sum(record.end == COMPLETE for record in records)
    return [
        Figure("kill -9 of a rank: unready after", unready_s, "s", at_most=0.3),
        Figure("kill -9 of a rank: all old ranks gone after", gone_s, "s", at_most=1),
        Figure("kill -9 of a rank: serving again after", back_s, "s", at_most=7,
               note="two of it to load torch on a quiet machine"),
        Figure("kill -9 of a rank: streams that go on", resumed, at_least=_NUM_STREAMS, note="token for token"),
    ]  # fmt: skip


def _stop_rank(server: Launched, oracle: Oracle) -> list[Figure]:
    stopped = faults.shard(server, 0)
    oracle.begin()
    with faults.held_load(server, _BODIES) as load:
        faults.stop(stopped)
    unready_s = faults.time_until(lambda: not faults.is_ready(server), _PATIENCE_S)
    faults.wait_until_ready(server)
    oracle.check(load.finish())
    return [Figure("SIGSTOP of a rank: unready after", unready_s, "s", at_most=3)]


def _kill_router(server: Launched, oracle: Oracle) -> list[Figure]:
    ranks = [faults.shard(server, 0), faults.shard(server, 1)]
    oracle.begin()
    with faults.held_load(server, _BODIES) as load:
        faults.kill(faults.router(server))
    back_s = faults.wait_until_ready(server)
    records = load.finish()
    oracle.check(records, may_break=True)
    assert {record.end for record in records} == {BROKEN}
    assert [faults.shard(server, 0), faults.shard(server, 1)] == ranks
    return [
        Figure(
            "kill -9 of the router: serving again after", back_s, "s", at_most=2, note="model not reloaded"
        )
    ]


def _kill_launcher(server: Launched) -> list[Figure]:
    with faults.held_load(server, _BODIES) as load:
        os.kill(server.process.pid, signal.SIGKILL)
        started = time.monotonic()
    check_nothing_is_left(server)
    gone_s = time.monotonic() - started
    load.finish()
    return [Figure("kill -9 of the launcher: nothing left after", gone_s, "s", at_most=3)]
