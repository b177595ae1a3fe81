"""Time to the first token of a long prompt, and of the same prompt again."""

import asyncio
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.streams import Stream, complete

TITLE = "First token of a prompt that came before (CPU)"
_REPEATS = 5
_MAX_SHARE = 0.15
# A chunk of the prompt ends where its state is kept, and up to a block is computed behind that.
_MAX_SHARE_WITH_STATES = 0.2


def measure() -> list[Figure]:
    """The demo model's context ends at 2,048 tokens; the larger model measures a longer prompt."""
    with Server() as server:
        demo = _figures("demo model", server, "12 + 30 is 42. ", 1900)
    with TemporaryDirectory() as folder, Server(f"--model-id={random_model.make(Path(folder))}") as server:
        larger = _figures("8 layers, 256 wide", server, "What is it? ", 2000)
    with (
        TemporaryDirectory() as folder,
        Server(f"--model-id={random_model.make_hybrid(Path(folder))}") as server,
    ):
        name = "8 layers, 6 of them recurrent"
        return demo + larger + _figures(name, server, "What is it? ", 2000, _MAX_SHARE_WITH_STATES)


def _figures(
    model: str, server: Server, sentence: str, num_tokens: int, at_most: float = _MAX_SHARE
) -> list[Figure]:
    text = _text(server, sentence, num_tokens)
    asyncio.run(_twice(server.address, f"warm-up {text}"))
    pairs = [asyncio.run(_twice(server.address, f"{number} {text}")) for number in range(_REPEATS)]
    shares = [again.ttft / first.ttft for first, again in pairs]
    cached = pairs[0][1].usage["prompt_tokens_details"]["cached_tokens"]
    note = f"median of {_REPEATS}, {min(shares):.2f} to {max(shares):.2f}; {cached} tokens were cached"
    size = pairs[0][0].usage["prompt_tokens"]
    return [
        Figure(f"{model}: second over first", median(shares), at_most=at_most, note=note),
        _milliseconds(f"{model}: {size} tokens, first time", [first for first, _ in pairs]),
        _milliseconds(f"{model}: {size} tokens, again", [again for _, again in pairs]),
    ]


def _milliseconds(name: str, streams: list[Stream]) -> Figure:
    return Figure(name, 1e3 * median(stream.ttft for stream in streams), "ms")


def _text(server: Server, sentence: str, num_tokens: int) -> str:
    per_ten = len(server.post("/tokenize", {"inputs": sentence * 10}))
    return sentence * (10 * num_tokens // per_ten)


async def _twice(address: tuple[str, int], prompt: str) -> tuple[Stream, Stream]:
    return await complete(address, prompt, 4), await complete(address, prompt, 4)
