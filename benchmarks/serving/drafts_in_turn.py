"""Sends the same requests in turn to a server with drafts and to one without: other load of the machine affects both.

Needs no transformers: a bare machine with a GPU runs it, too.
"""

import asyncio
import json
import time
from statistics import median
from typing import NamedTuple

from benchmarks.server import Server
from benchmarks.streams import Stream, complete


class Text(NamedTuple):
    """A kind of output, and the fields of its requests. `least_at_one`: floor of the ratio with one stream.

    `prompts`: each stream asks some of them, one after the other, whose answers end by themselves. Without, it asks for
    one text behind a prompt that says nothing.
    """

    name: str
    options: dict[str, object]
    least_at_one: float | None = None
    prompts: tuple[str, ...] = ()


# Prompts that a stream asks in a run.
_PROMPTS_OF_STREAM = 6


class Amount(NamedTuple):
    """Tokens of an answer, at most, and pairs of runs behind the one that warms both servers up."""

    num_new: int = 128
    repeats: int = 3


class Run(NamedTuple):
    """The requests of a number of streams: tokens a second, drafts that were right, and drafts that were not."""

    rate: float
    num_right: int
    num_wrong: int


class Pairs(NamedTuple):
    """Runs with drafts, each with the one without drafts beside it."""

    drafting: list[Run]
    plain: list[Run]

    def with_more(self, others: "Pairs") -> "Pairs":
        """These and others, of the same requests."""
        return Pairs(self.drafting + others.drafting, self.plain + others.plain)

    @property
    def ratios(self) -> list[float]:
        """Times the tokens a second without drafts."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.drafting, self.plain, strict=True)]

    @property
    def num_right(self) -> int:
        return sum(run.num_right for run in self.drafting)

    @property
    def num_drafts(self) -> int:
        return self.num_right + sum(run.num_wrong for run in self.drafting)

    @property
    def spread(self) -> str:
        return f"{min(self.ratios):.2f} to {max(self.ratios):.2f}"

    @property
    def rate(self) -> float:
        return median(run.rate for run in self.drafting)

    @property
    def plain_rate(self) -> float:
        return median(run.rate for run in self.plain)


def run_in_turn(plain: Server, drafting: Server, text: Text, count: int, amount: Amount) -> Pairs:
    """By so many streams at once. The first of the pairs only warms both up.

    Each server is first in every other pair: a machine that gets slower slows both.
    """
    drafts: list[Run] = []
    plains: list[Run] = []
    for number in range(amount.repeats + 1):
        turns = [(drafting, drafts), (plain, plains)]
        for server, runs in turns if number % 2 else reversed(turns):
            runs.append(_run(server, text, count, number, amount.num_new))
    return Pairs(drafts[1:], plains[1:])


def _run(server: Server, text: Text, count: int, number: int, num_new: int) -> Run:
    """`count` streams at once; prompts differ, so that no prefix is in the cache but for the other server's twin."""

    async def ask_all() -> list[list[Stream]]:
        return await asyncio.gather(
            *(_ask(server, text, number * count + index, num_new) for index in range(count))
        )

    started = time.perf_counter()
    done = [answer for answers in asyncio.run(ask_all()) for answer in answers]
    seconds = time.perf_counter() - started
    details = [stream.usage.get("completion_tokens_details", {}) for stream in done]
    right, wrong = (
        sum(detail.get(f"{part}_prediction_tokens", 0) for detail in details)
        for part in ("accepted", "rejected")
    )
    return Run(sum(stream.usage["completion_tokens"] for stream in done) / seconds, right, wrong)


async def _ask(server: Server, text: Text, stream: int, num_new: int) -> list[Stream]:
    """All that a stream asks, in order."""
    options = {**text.options, "seed": stream}
    if not text.prompts:
        answer = await complete(server.address, f"{stream} Tell me", num_new, options=options)
        assert answer.usage["completion_tokens"] == num_new, json.dumps(answer.usage)
        return [answer]
    places = range(stream * _PROMPTS_OF_STREAM, (stream + 1) * _PROMPTS_OF_STREAM)
    prompts = [text.prompts[place % len(text.prompts)] for place in places]
    return [
        await complete(server.address, prompt, num_new, options={**options, "ignore_eos": False})
        for prompt in prompts
    ]
