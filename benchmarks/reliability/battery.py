"""All rows of the battery with an end of their own: what is measured, and how long it takes."""

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.figure import Figure
from benchmarks.reliability import abuse, kills, leavers, overload, resources, slow_readers

TITLE = "What the server does while it is harmed (tiny model, two shards, client on the same cores)"

Row = Callable[[], list[Figure]]

FULL: dict[str, Row] = {
    "kills": kills.measure,
    "overload": partial(overload.measure, 10),
    "slow readers": slow_readers.measure,
    "leavers": partial(leavers.measure, 300),
    "resources": resources.measure,
    "abuse": partial(abuse.measure, 20),
}
# The rows that `make test` runs.
FAST: dict[str, Row] = {
    **FULL,
    "overload": partial(overload.measure, 3),
    "leavers": partial(leavers.measure, 30),
    "abuse": partial(abuse.measure, 1),
}


def measure() -> list[Figure]:
    """Measures the rows one after the other."""
    return list(_figures())


def _figures() -> Iterator[Figure]:
    for name, row in FULL.items():
        print(f"{name} …", flush=True)
        yield from row()
