"""Every question that is measured, in the order in which RESULTS.md answers them."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from benchmarks import rust
from benchmarks.compare import question as compare
from benchmarks.figure import Figure
from benchmarks.reliability import availability, battery, soak
from benchmarks.replicas import question as replicas
from benchmarks.serving import (
    adapters,
    decoding,
    hybrid_drafts,
    hybrids,
    interference,
    loading,
    masks,
    prefix_cache,
    speculation,
    startup,
    throughput,
)
from benchmarks.step_cost import question as step_cost


class Question(NamedTuple):
    """A question: its name on the command line, its title, and the function that measures it."""

    name: str
    title: str
    measure: Callable[[], list[Figure]]


def questions(minutes: float = 3.0) -> list[Question]:
    """All questions; `minutes` is the duration of those without an end of their own."""
    return [
        Question("startup", startup.TITLE, startup.measure),
        Question("throughput", throughput.TITLE, throughput.measure),
        Question("decoding", decoding.TITLE, decoding.measure),
        Question("hybrids", hybrids.TITLE, hybrids.measure),
        Question("loading", loading.TITLE, loading.measure),
        Question("compare", compare.TITLE, compare.measure),
        Question("larger", compare.LARGER_TITLE, partial(compare.measure, compare.LARGER)),
        Question("quantized", compare.QUANTIZED_TITLE, partial(compare.measure, compare.QUANTIZED)),
        Question("prefix_cache", prefix_cache.TITLE, prefix_cache.measure),
        Question("interference", interference.TITLE, interference.measure),
        Question("step_cost", step_cost.TITLE, step_cost.measure),
        Question("adapters", adapters.TITLE, adapters.measure),
        Question("speculation", speculation.TITLE, speculation.measure),
        Question("hybrid_drafts", hybrid_drafts.TITLE, hybrid_drafts.measure),
        Question("masks", masks.TITLE, masks.measure),
        Question(
            "router",
            "What the router adds: request to first event, over a shard that answers at once",
            rust.router,
        ),
        Question("replicas", replicas.TITLE, replicas.measure),
        Question("proxy", replicas.PROXY_TITLE, partial(replicas.measure, has_proxy=True)),
        Question("scheduler", "The scheduler alone, and its policy in virtual time", rust.scheduler),
        Question("battery", battery.TITLE, battery.measure),
        Question("availability", availability.TITLE, partial(availability.measure, minutes)),
        Question("soak", soak.TITLE, partial(soak.measure, minutes)),
    ]
