"""Gaps between tokens of eight streams while a long prompt is computed."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, percentile
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.streams import Stream, complete

TITLE = "Eight streams while a long prompt is computed (8 layers, 256 wide, CPU)"
_NUM_STREAMS = 8
_PROMPT_LEN = 8_000
_QUIET_TOKENS = 200
_REPEATS = 2


def measure() -> list[Figure]:
    """Gaps before and after the prompt count as those without it; the gaps of all repeats are pooled."""
    quiet: list[float] = []
    busy: list[float] = []
    first_tokens: list[float] = []
    with TemporaryDirectory() as folder, Server(f"--model-id={random_model.make(Path(folder))}") as server:
        for number in range(_REPEATS):
            streams, long = asyncio.run(_run(server.address, number))
            first_tokens.append(long.ttft)
            for stream in streams:
                without, during = _split(stream, long)
                quiet += without
                busy += during
    return _figures(quiet, busy, first_tokens)


def _figures(quiet: list[float], busy: list[float], first_tokens: list[float]) -> list[Figure]:
    ratio = percentile(busy, 99) / percentile(quiet, 99)
    note = f"{len(busy)} gaps during {_REPEATS} prompts, {len(quiet)} without"
    kinds = [("without", quiet), ("during the prompt", busy)]
    return [
        Figure("p99 gap during the prompt over p99 without", ratio, at_most=2, note=note),
        *(
            Figure(f"p{share} gap {kind}", 1e3 * percentile(gaps, share), "ms")
            for kind, gaps in kinds
            for share in (50, 99)
        ),
        Figure(f"first token of the {_PROMPT_LEN:,} token prompt", max(first_tokens), "s", note="slowest"),
    ]


async def _run(address: tuple[str, int], number: int) -> tuple[list[Stream], Stream]:
    streams = [Stream() for _ in range(_NUM_STREAMS)]
    room = random_model.CONTEXT_LEN - 100
    tasks = [
        asyncio.create_task(complete(address, f"stream {number} {index}", room, stream))
        for index, stream in enumerate(streams)
    ]
    await _tokens_more(streams, _QUIET_TOKENS)
    long = await complete(address, f"{number} " + "x" * _PROMPT_LEN, 1)
    await _tokens_more(streams, _QUIET_TOKENS)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return streams, long


async def _tokens_more(streams: list[Stream], count: int) -> None:
    goals = [len(stream.at) + count for stream in streams]
    while any(len(stream.at) < goal for stream, goal in zip(streams, goals, strict=True)):
        await asyncio.sleep(0.05)


def _split(stream: Stream, long: Stream) -> tuple[list[float], list[float]]:
    """Gaps outside of the computation of the prompt, and gaps that overlap it."""
    without: list[float] = []
    during: list[float] = []
    # The first gaps contain the computation of the other streams' prompts.
    for before, after in list(zip(stream.at, stream.at[1:], strict=False))[20:]:
        touched = after > long.sent and before < long.at[0]
        (during if touched else without).append(after - before)
    return without, during
