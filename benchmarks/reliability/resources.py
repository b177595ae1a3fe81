"""Resources of the machine that run out: file descriptors, disk, memory. And jumps of its clock."""

import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

from e2e import faults, machine
from e2e.clients import COMPLETE, Load, Record, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle

from benchmarks.figure import Figure
from benchmarks.reliability import served
from benchmarks.reliability.memory import num_files

_NUM_STREAMS = 8
_BODIES = [make_body(5000 + number, 150, number or None) for number in range(_NUM_STREAMS)]
_SPARE_FILES = 4
_PATIENCE_S = 60.0
_HOUR_S = 3600
_DISK = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs RUN && exec "$@"', "sh")


def measure() -> list[Figure]:
    """Streams that run during the fault must complete with their own tokens."""
    figures: list[Figure] = []
    with served.tiny() as server:
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(_BODIES)
        figures += [_out_of_files(server, oracle), _out_of_memory(server, oracle)]
    return [*figures, *_out_of_disk(), *_clock_jumps()]


def _out_of_files(server: Launched, oracle: Oracle) -> Figure:
    """Connections take the router's last descriptor; running ones continue, new ones wait until some are closed."""
    oracle.begin()
    pid = faults.router(server)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert server.address
    with ExitStack() as stack:
        with faults.held_load(server, _BODIES) as load:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_files(pid) + _SPARE_FILES, limits[1]))
            for _ in range(10 * _SPARE_FILES):
                stack.enter_context(socket.create_connection(server.address, timeout=10))
            time.sleep(1)
        records = load.finish()
    back_s = faults.wait_until_ready(server)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    oracle.check(records)
    return _went_on("no file descriptors", records, f"ready {back_s:.2f} s after some were free")


def _out_of_memory(server: Launched, oracle: Oracle) -> Figure:
    """A shard cannot allocate any more memory."""
    oracle.begin()
    pid, restarts = faults.shard(server, 1), faults.restarts(server)
    with ExitStack() as stack:
        with faults.held_load(server, _BODIES) as load:
            how = stack.enter_context(machine.without_memory(pid))
        # The streams that run may already have all the memory they need: more streams need more.
        more = Load(server, _BODIES)
        back_s = faults.time_until(lambda: faults.restarts(server) > restarts, _PATIENCE_S)
    back_s += faults.wait_until_ready(server)
    records = [*load.finish(), *more.finish()]
    oracle.check(records)
    return _went_on("a shard out of memory", records, f"{how}; ready again {back_s:.1f} s later")


def _clock_jumps() -> list[Figure]:
    """The time of day of every process is set two hours back, then an hour ahead, while streams run."""
    if not machine.WallClock.can_be_made():
        print("clock jumps: not measured, there is no C compiler", flush=True)
        return []
    with TemporaryDirectory() as folder:
        clock = machine.WallClock(Path(folder))
        with served.tiny(under=clock.under) as server:
            oracle = Oracle(server, MAX_CONCURRENT)
            oracle.learn(_BODIES)
            processes = [faults.router(server), faults.shard(server, 0), faults.shard(server, 1)]
            assert all(map(clock.is_of, processes))
            before = _reported_time(server)
            clock.set(_HOUR_S)
            assert _reported_time(server) - before >= _HOUR_S
            oracle.begin()
            restarts = faults.restarts(server)
            with faults.held_load(server, _BODIES) as load:
                for seconds in (-_HOUR_S, 0):
                    clock.set(seconds)
                    load.wait_for_tokens(load.num_tokens + _NUM_STREAMS * 2)
            records = _finish(load, oracle)
            assert faults.restarts(server) == restarts
    return [_went_on("clock jumps", records, "two hours back, then one ahead; nothing is restarted")]


def _reported_time(server: Launched) -> float:
    """The time of day of the router."""
    status, answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert status == 200
    return float(answer["created"])


def _out_of_disk() -> list[Figure]:
    """The folder of sockets is full; a rank is killed, and comes back when there is room."""
    if run([*_DISK[:4], "mount -t tmpfs none /mnt", "sh"], capture_output=True, check=False).returncode:
        print("full disk: not measured, mounting is not permitted", flush=True)
        return []
    with served.tiny(under=_DISK) as server:
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(_BODIES)
        # The folder in the server's mount namespace.
        filler = Path(f"/proc/{server.process.pid}/root{server.tmp}/filler")
        with suppress(OSError):
            filler.write_bytes(bytes(2 << 20))
        served_full = _went_on(
            "full disk", _finish(Load(server, _BODIES), oracle), "requests while nothing can be written"
        )
        with faults.held_load(server, _BODIES) as load:
            faults.kill(faults.shard(server, 0))
        time.sleep(5)
        filler.unlink()
        started = time.monotonic()
        faults.wait_until_ready(server)
        records = _finish(load, oracle)
        back_s = time.monotonic() - started
    note = f"a rank was killed on it 5 s before there was room again; {back_s:.1f} s later all were done"
    return [served_full, _went_on("full disk, and a rank killed", records, note)]


def _finish(load: Load, oracle: Oracle) -> list[Record]:
    records = load.finish()
    oracle.check(records)
    return records


def _went_on(name: str, records: list[Record], note: str) -> Figure:
    complete = sum(record.end == COMPLETE for record in records)
    return Figure(f"{name}: streams that complete", complete, at_least=len(records), note=note)
