"""Tokens a second of the demo model over HTTP, with drafts and without, in turn.

By n-gram on text that repeats and on text that does not; by draft models that are the two ends: the model itself, which
is always right and costs as much, and one layer of noise, which is never right; and by the heads of the demo model, as
chains and as trees. Then for the demo model in the size of one of 30 million parameters, where a step waits for its
weights: by n-gram, by the demo model, which knows it, and by the heads.
"""

import asyncio
import json
import shutil
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from transformers import AutoConfig, LlamaForCausalLM

from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving.widened import DEMO, widen
from benchmarks.streams import Stream, complete

TITLE = "Drafted tokens: the demo model with drafts and without, 128 tokens out (CPU)"
_NUMS_STREAMS = (1, 4, 8, 16)
_NUM_NEW = 128
_REPEATS = 3
# Above 8 streams the scheduler drafts nothing.
_LEAST_AT_SATURATION, _SATURATED = 0.98, 16
# A text that is guessed, in steps that each give up to five tokens.
_LEAST_WHERE_RIGHT = 2.0


class Text(NamedTuple):
    """What is generated, and how: one of three lists of words again and again, or what is drawn."""

    name: str
    options: dict[str, object]
    least_at_one: float | None = None


# Flags of a server, and what it generates.
_Cases = list[tuple[tuple[str, ...], list[Text]]]

# Of three tokens that are far likelier than all others the last few soon come again.
_REPEATING = Text(
    "by n-gram, text that repeats",
    {"logit_bias": {"300": 60, "301": 60, "302": 60}},
    _LEAST_WHERE_RIGHT,
)
_DRAWN = Text("by n-gram, text that does not", {"temperature": 1.2})


class _Run(NamedTuple):
    """The requests of a number of streams."""

    rate: float
    num_right: int
    num_wrong: int


def measure() -> list[Figure]:
    """Each way of drafting, for both sizes."""
    with TemporaryDirectory() as temporary:
        noise, wide = _noise(Path(temporary) / "noise"), Path(temporary) / "wide"
        widen(wide)
        by_demo = f"--draft-model={DEMO}"
        small: _Cases = [
            (("--speculation=ngram",), [_REPEATING, _DRAWN]),
            (("--speculation=draft", by_demo), [_drawn("by the model itself")]),
            (("--speculation=draft", f"--draft-model={noise}"), [_drawn("by a layer of noise")]),
            *_by_heads(""),
        ]
        large: _Cases = [
            (("--speculation=ngram",), [_REPEATING._replace(name="30M, by n-gram, text that repeats")]),
            (("--speculation=draft", by_demo), [_drawn("30M, by the demo model", _LEAST_WHERE_RIGHT)]),
            *_by_heads("30M, "),
        ]
        return [*_compare_all(small), *_compare_all(large, f"--model-id={wide}")]


def _drawn(name: str, least_at_one: float | None = None) -> Text:
    return Text(name, {"temperature": 1.0}, least_at_one)


def _by_heads(size: str) -> _Cases:
    trees = "--speculate-branches=3"
    return [
        (("--speculation=medusa",), [_drawn(f"{size}by heads of MEDUSA")]),
        (("--speculation=medusa", trees), [_drawn(f"{size}by heads of MEDUSA, trees")]),
        (("--speculation=eagle",), [_drawn(f"{size}by a head of EAGLE")]),
        (("--speculation=eagle", trees), [_drawn(f"{size}by a head of EAGLE, trees")]),
    ]


def _compare_all(cases: _Cases, *model: str) -> list[Figure]:
    """One server without drafts, beside one after the other with them."""
    figures: list[Figure] = []
    with Server("--dtype=float32", *model) as plain:
        for flags, texts in cases:
            with Server("--dtype=float32", *model, *flags) as drafting:
                figures += [figure for text in texts for figure in compare(plain, drafting, text)]
    return figures


def _noise(folder: Path) -> Path:
    """A smaller model of the same vocabulary, which was never trained."""
    config = AutoConfig.from_pretrained(DEMO, num_hidden_layers=1)
    torch.manual_seed(3)
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(DEMO / "tokenizer.json", folder)
    return folder


def compare(plain: Server, drafting: Server, text: Text) -> list[Figure]:
    """By 1, 4, 8 and 16 streams at once."""
    return [_compared(plain, drafting, text, count) for count in _NUMS_STREAMS]


def _compared(plain: Server, drafting: Server, text: Text, count: int) -> Figure:
    """The first of the pairs only warms both up."""
    pairs = [
        (_run(drafting, text, count, number), _run(plain, text, count, number))
        for number in range(_REPEATS + 1)
    ][1:]
    ratios = [ours.rate / theirs.rate for ours, theirs in pairs]
    right, wrong = (sum(getattr(ours, part) for ours, _ in pairs) for part in ("num_right", "num_wrong"))
    at_least = _LEAST_AT_SATURATION if count == _SATURATED else None
    name = f"{text.name}, {count} stream{'s' * (count > 1)}: times the tokens/s without drafts"
    note = (
        f"{min(ratios):.2f} to {max(ratios):.2f}; {right} of {right + wrong} drafts right; "
        f"{median(ours.rate for ours, _ in pairs):.0f} tokens/s"
    )
    return Figure(name, median(ratios), at_least=text.least_at_one if count == 1 else at_least, note=note)


def _run(server: Server, text: Text, count: int, number: int) -> _Run:
    """`count` requests at once; prompts differ, so that no prefix is in the cache but for the other server's twin."""

    async def ask() -> list[Stream]:
        asked = (
            complete(
                server.address, f"{number} {index} Tell me", _NUM_NEW, options={**text.options, "seed": index}
            )
            for index in range(count)
        )
        return await asyncio.gather(*asked)

    started = time.perf_counter()
    done = asyncio.run(ask())
    seconds = time.perf_counter() - started
    assert all(stream.usage["completion_tokens"] == _NUM_NEW for stream in done), json.dumps(done[0].usage)
    details = [stream.usage.get("completion_tokens_details", {}) for stream in done]
    right, wrong = (
        sum(detail.get(f"{part}_prediction_tokens", 0) for detail in details)
        for part in ("accepted", "rejected")
    )
    return _Run(count * _NUM_NEW / seconds, right, wrong)
