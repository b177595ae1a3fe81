"""Every question that is measured, in the order in which RESULTS.md answers them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks import rust
from benchmarks.compare import question as compare
from benchmarks.figure import Figure
from benchmarks.reliability import availability, battery, soak
from benchmarks.serving import decoding, interference, loading, masks, prefix_cache, startup, throughput


class Question(NamedTuple):
    """How it is asked, what it is called, and how to measure it."""

    name: str
    title: str
    measure: Callable[[], list[Figure]]


def questions(minutes: float = 3.0) -> list[Question]:
    """`minutes` is for those that could go on for ever."""
    return [
        Question("startup", startup.TITLE, startup.measure),
        Question("throughput", throughput.TITLE, throughput.measure),
        Question("decoding", decoding.TITLE, decoding.measure),
        Question("loading", loading.TITLE, loading.measure),
        Question("compare", compare.TITLE, compare.measure),
        Question("prefix_cache", prefix_cache.TITLE, prefix_cache.measure),
        Question("interference", interference.TITLE, interference.measure),
        Question("masks", masks.TITLE, masks.measure),
        Question(
            "router",
            "What the router adds: request to first event, over a shard that answers at once",
            rust.router,
        ),
        Question("scheduler", "The scheduler alone, and its policy in virtual time", rust.scheduler),
        Question("battery", battery.TITLE, battery.measure),
        Question("availability", availability.TITLE, partial(availability.measure, minutes)),
        Question("soak", soak.TITLE, partial(soak.measure, minutes)),
    ]
