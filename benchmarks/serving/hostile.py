"""Delay of plain streams beside a sequence whose grammar is made to cost much.

One grammar has ever more ways to read the text, and one schema contains itself in a hundred ways. A sequence whose
grammar takes too long fails alone; until then, and while it is dropped, the others go on.
"""

import asyncio
import string
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, percentile
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.streams import Stream, StreamFailed, complete

_NUM_STREAMS = 4
_NUM_TOKENS = 400
# The most tokens of a hostile fifth stream. A plain fifth stream has as many as the others.
_NUM_HOSTILE = 1_900
_NUM_ROUNDS = 3
# A fifth stream is cut off then: what it costs the others grows with its text, and ends with its failure.
_LONGEST_S = 40.0
_AMBIGUOUS = {"type": "grammar", "value": 'start: e\ne: e e e | e e | "x"'}
_LISTS = [{"type": "array", "items": {"$ref": "#/$defs/any"}} for _ in range(100)]
_SCHEMA = {"$defs": {"any": {"anyOf": _LISTS}}, "$ref": "#/$defs/any"}
_RECURSIVE = {"type": "json_schema", "json_schema": {"name": "lists", "schema": _SCHEMA}}
_HOSTILE = {"an ambiguous grammar": (_AMBIGUOUS, "x"), "a schema of 100 recursive lists": (_RECURSIVE, "[")}


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder, Server(f"--model-id={random_model.make(Path(folder))}") as server:
        ids = {letter: _token_id(server, letter) for letter in "x["}
        rounds = [_run(server.address, ids, number) for number in range(_NUM_ROUNDS)]
    plain = [gap for gaps, _ in rounds for gap in gaps]
    figures = [Figure("gap of four streams beside a plain fifth: p99", 1e3 * percentile(plain, 99), "ms")]
    for name in _HOSTILE:
        gaps = [gap for _, found in rounds for gap in found[name]]
        note = f"{len(gaps)} gaps, {len(plain)} beside a plain one"
        figures += [
            Figure(f"the same beside {name}, over a plain one: p50", _ratio(gaps, plain, 50), note=note),
            Figure(f"the same: p99, beside {name}", _ratio(gaps, plain, 99), at_most=1.5),
        ]
    return figures


def _ratio(gaps: list[float], plain: list[float], percent: int) -> float:
    return percentile(gaps, percent) / percentile(plain, percent)


def _token_id(server: Server, letter: str) -> int:
    return int(server.post("/tokenize", {"inputs": letter})[0]["id"])


def _run(
    address: tuple[str, int], ids: dict[str, int], number: int
) -> tuple[list[float], dict[str, list[float]]]:
    """Gaps beside a plain stream and beside each hostile one, in turns: what the machine does counts for all."""
    plain = asyncio.run(_beside(address, f"{number} plain", {"max_tokens": _NUM_TOKENS}))
    hostile = {}
    for name, (grammar, letter) in _HOSTILE.items():
        # The shortest token each time, so that there is much to read.
        bias = {"logit_bias": {str(ids[letter]): 100.0}, "ignore_eos": False, "response_format": grammar}
        hostile[name] = asyncio.run(_beside(address, f"{number} {name}", bias))
    return plain, hostile


async def _beside(address: tuple[str, int], name: str, options: dict[str, object]) -> list[float]:
    """Seconds between tokens of some streams while a fifth one runs: to its end, its failure or the longest time."""
    fifth = asyncio.create_task(_fifth(address, name, options))
    gaps: list[float] = []
    while not fifth.done():
        streams = [Stream() for _ in range(_NUM_STREAMS)]
        running = [
            asyncio.create_task(complete(address, f"{name} {letter}", _NUM_TOKENS, stream))
            for letter, stream in zip(string.ascii_letters, streams, strict=False)
        ]
        waiting = set(running)
        while waiting and not fifth.done():
            _, unfinished = await asyncio.wait({fifth, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting &= unfinished
        for task in waiting:
            task.cancel()
        gaps += [after - before for stream in streams for before, after in pairwise(stream.at)]
        for task in set(running) - waiting:
            task.result()
    await fifth
    return gaps


async def _fifth(address: tuple[str, int], name: str, options: dict[str, object]) -> None:
    # A grammar that takes too long fails in the end, which is what is to happen.
    with suppress(StreamFailed, TimeoutError):
        async with asyncio.timeout(_LONGEST_S):
            await complete(address, name, _NUM_HOSTILE, options=options)
