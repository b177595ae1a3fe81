"""Tokens a second of the demo model over HTTP, with drafts and without, in turn.

By n-gram on text that repeats and on text that does not; by draft models that are the two ends: the model itself, which
is always right and costs as much, and one layer of noise, which is never right; and by the heads of the demo model, as
chains and as trees, on answers to questions and on text that they cannot know. Then for the demo model in the size of
one of 30 million parameters, where a step waits for its weights: by n-gram, by the demo model, which knows it, and by
the heads.
"""

from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving.drafts_in_turn import Amount, Pairs, Text, run_in_turn
from benchmarks.serving.ways_to_draft import (
    DRAWN,
    REPEATING,
    Way,
    by_heads,
    by_model,
    by_ngram,
    write_noise,
)
from benchmarks.serving.widened import DEMO, widen

TITLE = "Drafted tokens: the demo model with drafts and without, 128 tokens out (CPU)"
_NUMS_STREAMS = (1, 4, 8, 16)
# Above 8 streams the scheduler drafts nothing. A floor near 1 takes more pairs of runs than one far from it.
_LEAST_AT_SATURATION, _SATURATED = 0.98, 16


class NumPairs(NamedTuple):
    """How many pairs of runs a pair of servers has, one run of each with drafts and one without; and how many pairs of
    servers there are."""

    usual: int
    at_saturation: int
    servers: int = 1


USUAL = NumPairs(4, 12)
# Runs of the demo model take a tenth of a second to one. Two processes of the same server are up to 6 % apart there, as
# long as they live.
_OF_DEMO = NumPairs(2, 6, servers=6)


def measure() -> list[Figure]:
    """Each way of drafting, for both sizes."""
    with TemporaryDirectory() as temporary:
        noise, wide = write_noise(Path(temporary) / "noise"), Path(temporary) / "wide"
        widen(wide)
        small = [
            by_ngram(REPEATING, DRAWN),
            by_model(DEMO, "by the model itself"),
            by_model(noise, "by a layer of noise"),
            *by_heads(),
        ]
        large = [by_ngram(REPEATING), by_model(DEMO, "by the demo model", is_right=True), *by_heads()]
        return [
            *_compare_all(small, _OF_DEMO),
            *_compare_all(large, USUAL, "30M, ", f"--model-id={wide}"),
        ]


def _compare_all(ways: list[Way], numbers: NumPairs, size: str = "", *model: str) -> list[Figure]:
    """Beside each server with drafts one without, as old as it: a server gets faster with each request that it has
    served, for some hundreds of them."""
    figures: list[Figure] = []
    for way in ways:
        named = [text._replace(name=size + text.name) for text in way.texts]
        asked = list(product(named, _NUMS_STREAMS))
        found = [Pairs([], []) for _ in asked]
        for _ in range(numbers.servers):
            with (
                Server("--dtype=float32", *model) as plain,
                Server("--dtype=float32", *model, *way.flags) as drafting,
            ):
                found = [
                    pairs.with_more(_run(plain, drafting, *each, numbers))
                    for each, pairs in zip(asked, found, strict=True)
                ]
        figures += [_figure(*each, pairs) for each, pairs in zip(asked, found, strict=True)]
    return figures


def compare(plain: Server, drafting: Server, text: Text, numbers: NumPairs) -> list[Figure]:
    """By 1, 4, 8 and 16 streams at once."""
    return [_figure(text, count, _run(plain, drafting, text, count, numbers)) for count in _NUMS_STREAMS]


def _run(plain: Server, drafting: Server, text: Text, count: int, numbers: NumPairs) -> Pairs:
    repeats = numbers.at_saturation if count == _SATURATED else numbers.usual
    return run_in_turn(plain, drafting, text, count, Amount(repeats=repeats))


def _figure(text: Text, count: int, pairs: Pairs) -> Figure:
    is_saturated = count == _SATURATED
    at_least = _LEAST_AT_SATURATION if is_saturated else None
    name = f"{text.name}, {count} stream{'s' * (count > 1)}: times the tokens/s without drafts"
    note = f"{pairs.spread}; {pairs.num_right} of {pairs.num_drafts} drafts right; {pairs.rate:.0f} tokens/s"
    return Figure(
        name, median(pairs.ratios), at_least=text.least_at_one if count == 1 else at_least, note=note
    )
