"""A soak: mixed traffic, each process killed once at the beginning, then memory and open files over time."""

import time
from collections import Counter
from random import Random

from e2e import faults
from e2e.clients import BROKEN, SILENT, Record, Traffic, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched
from e2e.oracle import Oracle

from benchmarks.figure import Figure
from benchmarks.reliability import served
from benchmarks.reliability.memory import Course, num_files

TITLE = "A soak: streams, leavers and refusals, after a rank hung and another and the router were killed"
_NUM_CLIENTS = 8
_HARM = ("hang of rank 0", "kill rank 1", "kill router")
# Each kill has this share of the time, and the observation the rest; its first third is warm-up.
_HARM_SHARE = 1 / 12
_LOOK_EVERY_S = 5.0
# A slope is extrapolated to 10 minutes, so that of a short run means nothing.
_MIN_SLOPE_S = 600.0


def measure(minutes: float) -> list[Figure]:
    """Faults come first, because the memory of a process that is replaced cannot be followed."""
    duration_s = minutes * 60
    with served.tiny() as server:
        started = time.monotonic()
        with Traffic(server, _NUM_CLIENTS, _choose) as traffic:
            _harm(server, duration_s * _HARM_SHARE)
            courses = _courses(server)
            files = {course.name: num_files(course.pid) for course in courses}
            watched_from = time.monotonic() + (duration_s - (time.monotonic() - started)) / 3
            _watch(courses, watched_from, started + duration_s, traffic)
        # Idle: no block is held.
        Oracle(server, MAX_CONCURRENT).begin()
        more_files = {course.name: num_files(course.pid) - files[course.name] for course in courses}
    return _figures(courses, traffic.records, more_files, time.monotonic() - watched_from)


def _choose(dice: Random) -> Record:
    """Mostly streams that are read to the end; some clients disconnect, some requests are refused."""
    seed = dice.choice((None, dice.randrange(1 << 30)))
    body = make_body(dice.randrange(1 << 24), dice.randint(5, 80), seed)
    kind = dice.random()
    if kind < 0.05:
        body["parameters"]["max_new_tokens"] = 0
    return Record(body, leave_after=dice.randint(1, 4) if kind > 0.8 else 0)


def _harm(server: Launched, each_s: float) -> None:
    for name in _HARM:
        faults.RANDOM[name](server)
        print(name, flush=True)
        time.sleep(each_s)
        faults.wait_until_ready(server)


def _courses(server: Launched) -> list[Course]:
    shards = [Course(f"shard {rank}", faults.shard(server, rank)) for rank in (0, 1)]
    return [Course("launcher", server.process.pid), Course("router", faults.router(server)), *shards]


def _watch(courses: list[Course], watched_from: float, until: float, traffic: Traffic) -> None:
    logged_at = 0.0
    while (now := time.monotonic()) < until:
        if now >= watched_from:
            for course in courses:
                course.look()
        if now - logged_at > 60:
            logged_at = now
            sizes = {course.name: course.mib[-1] if course.mib else None for course in courses}
            print(f"{until - now:.0f} s left: {len(traffic.records)} requests, MiB {sizes}", flush=True)
        time.sleep(_LOOK_EVERY_S)


def _figures(
    courses: list[Course], records: list[Record], more_files: dict[str, int], watched_s: float
) -> list[Figure]:
    at_most = 1 if watched_s >= _MIN_SLOPE_S else None
    ends = Counter(record.end for record in records)
    refused = sum(_is_refused_as_asked(record) for record in records)
    errors = ends["error"] - refused
    growth = [
        Figure(
            f"{course.name}: growth in 10 minutes",
            course.slope(),
            "MiB",
            at_most=at_most,
            note=f"from {course.mib[0]:.1f} to {course.mib[-1]:.1f} MiB in {watched_s / 60:.0f} minutes, "
            f"files {more_files[course.name]:+d}",
        )
        for course in courses
    ]
    ended = f"{ends['complete']:,} complete, {ends['left']:,} left, {refused:,} refused, {ends[BROKEN]} broke"
    return [
        *growth,
        Figure("requests without an end", ends[SILENT], at_most=0, note=f"of {len(records):,}: {ended}"),
        Figure("errors that nobody asked for", errors, at_most=0),
    ]


def _is_refused_as_asked(record: Record) -> bool:
    return record.error is not None and record.error["error_type"] == "validation"
