"""Part 7: tokens a second over HTTP with drafts and without, in turn, by each way to draft.

First for the demo model in the size of one of a billion parameters, which is made here, then for the demo model itself,
where a step is launches and little else. Both servers are on the same device; one rests while the other is asked.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.gpu.lines import Result
from benchmarks.gpu.once import Once
from benchmarks.gpu.run import Run
from benchmarks.server import Server
from benchmarks.serving.drafts_in_turn import Amount, Text, run_in_turn
from benchmarks.serving.ways_to_draft import (
    DRAWN,
    REPEATING,
    Way,
    by_heads,
    by_model,
    by_ngram,
    write_noise,
)
from benchmarks.serving.widened import BILLION, DEMO, Widths, widen

_RATIO = "times the rate without drafts"
# See `DecodeGraphs.takes_trees`.
_NO_TREES = "on a GPU heads draft chains, as above"


class Sizes(NamedTuple):
    """The sizes of this part: the larger model's name and widths, streams at once, tokens and runs, cache positions."""

    name: str
    widths: Widths
    streams: tuple[int, ...]
    amount: Amount
    cache: int


REAL = Sizes("1B", BILLION, (1, 4, 8, 16), Amount(), 32768)
TINY = Sizes("tiny", Widths(256, 512, 4, 4), (2,), Amount(8, 1), 1024)


def run(run: Run) -> None:
    sizes = TINY if run.rehearse else REAL
    with TemporaryDirectory() as made:
        wide = Once(lambda: _widened(Path(made) / "wide", sizes.widths))
        ways = [by_ngram(REPEATING, DRAWN), by_model(DEMO, "by the demo model"), *by_heads()]
        _measure(run, sizes.name, wide, ways, sizes)
        noise = write_noise(Path(made) / "noise")
        ends = [by_model(DEMO, "by the model itself"), by_model(noise, "by a layer of noise")]
        ways = [by_ngram(REPEATING, DRAWN), *ends, *by_heads()]
        _measure(run, "demo model", lambda: DEMO, ways, sizes)


def _widened(folder: Path, widths: Widths) -> Path:
    widen(folder, widths)
    return folder


def _measure(run: Run, head: str, model: Callable[[], Path], ways: list[Way], sizes: Sizes) -> None:
    """One server without drafts, beside one after the other with them; each starts when a result of it is missing."""

    def start(stack: ExitStack, flags: tuple[str, ...]) -> Server:
        slots, cache = f"--max-batch-size={max(sizes.streams)}", f"--max-batch-total-tokens={sizes.cache}"
        named = (f"--model-id={model()}", "--num-shard=1", slots, cache, *flags)
        server = Server(*named, device=run.device)
        stack.push(server)
        return server

    with ExitStack() as stack:
        plain = Once(lambda: start(stack, ()))
        for way in ways:
            with ExitStack() as own:
                drafting = Once(partial(start, own, way.flags))
                _measure_way(run, head, way, sizes, partial(_both, plain, drafting))


def _both(plain: Once[Server], drafting: Once[Server]) -> tuple[Server, Server]:
    """They start at the same time."""
    both = plain(), drafting()
    for server in both:
        server.wait()
    return both


def _measure_way(
    run: Run, head: str, way: Way, sizes: Sizes, servers: Callable[[], tuple[Server, Server]]
) -> None:
    """Each text by each number of streams. `servers`: the one without drafts, and the one with them."""
    for text in way.texts:
        for count in sizes.streams:
            name = f"{head}, {text.name}, {count} stream{'s' * (count > 1)}"
            if way.has_trees and run.device == "cuda":
                run.measure(name, lambda: [Result(_RATIO, None, note=_NO_TREES)])
            else:
                run.measure(name, partial(_compared, servers, text, count, sizes.amount))


def _compared(
    servers: Callable[[], tuple[Server, Server]], text: Text, count: int, amount: Amount
) -> list[Result]:
    pairs = run_in_turn(*servers(), text, count, amount)
    right = 100 * pairs.num_right / pairs.num_drafts if pairs.num_drafts else None
    drafts = f"of {pairs.num_drafts:,}" if pairs.num_drafts else "nothing was drafted"
    return [
        Result(_RATIO, median(pairs.ratios), note=pairs.spread),
        Result("rate", pairs.rate, "tokens/s", note=f"{pairs.plain_rate:,.0f} without drafts"),
        Result("drafts right", right, "%", note=drafts),
    ]
