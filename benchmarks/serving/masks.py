"""Cost of a constrained sequence with a vocabulary of 128,000 tokens: its masks, and the delay of other sequences."""

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock_server.engine.grammar import GrammarMasks, Grammars, tell
from penstock_server.engine.plan import Admit, Grammar
from penstock_server.engine.sampling_params import Feature, SamplingParams
from penstock_server.engine.step import SampledRow
from tokenizers import Tokenizer

from benchmarks.figure import Figure, percentile
from benchmarks.server import Server
from benchmarks.serving import hostile, large_vocabulary, random_model
from benchmarks.streams import Stream, complete

TITLE = f"Masks of constrained sequences, {large_vocabulary.NUM_TOKENS:,} tokens in the vocabulary"
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string"}},
        },
    },
    "required": ["name", "age", "tags", "address"],
}
_TEXT = json.dumps(
    {
        "name": "Ada Lovelace of London",
        "age": 36,
        "tags": ["red", "blue"],
        "address": {"street": "12 St James's Square, not far from the park", "zip": "SW1Y"},
    }
)
_REPEATS = 20
# Longer than any mask takes.
_LONGEST_S = 60.0
_NUM_STREAMS = 4
_NUM_TOKENS = 150
_ENDLESS = {"type": "array", "items": _PERSON, "minItems": 400}


def measure() -> list[Figure]:
    tokenizer = large_vocabulary.tokenizer()
    with TemporaryDirectory() as folder:
        masks = _masks(Path(folder), tokenizer)
        plain, constrained = _gaps(Path(folder), tokenizer)
    ratio = percentile(constrained, 50) / percentile(plain, 50)
    return [
        Figure("mask of one sequence: p50", 1e6 * percentile(masks, 50), "µs", at_most=100),
        Figure("mask of one sequence: p99", 1e6 * percentile(masks, 99), "µs"),
        Figure(
            f"p50 gap of {_NUM_STREAMS} streams, a fifth one constrained over plain",
            ratio,
            at_most=1.05,
            note=f"{len(plain)} and {len(constrained)} gaps",
        ),
        Figure("p50 gap with a plain stream", 1e3 * percentile(plain, 50), "ms"),
        Figure("p50 gap with a constrained one", 1e3 * percentile(constrained, 50), "ms"),
        *hostile.measure(),
    ]


def _masks(folder: Path, tokenizer: Tokenizer) -> list[float]:
    """Seconds from the moment a token is known until the mask behind it is there, for a text's tokens, as in steps."""
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    grammars = Grammars(path, large_vocabulary.NUM_TOKENS, ())
    row = SampledRow(0, 0, 0, Feature(0), SamplingParams())
    tokens = longest_tokens(tokenizer, _TEXT)
    times = []
    for _ in range(_REPEATS):
        grammars.admit(Admit(0, [1], 1, [], SamplingParams(), Grammar("json_schema", json.dumps(_PERSON))))
        # Building the grammar is not measured: it happens while the prompt is computed.
        found = _collect(grammars, row)
        for token in tokens[:-1]:
            chosen = [choice.slot for choice in grammars.choose([row], found)]
            known = time.perf_counter()
            tell((slot, [token]) for slot in chosen)
            found = _collect(grammars, row)
            times.append(time.perf_counter() - known)
            assert not found.errors, found.errors
        grammars.retire(0)
    return times


def _collect(grammars: Grammars, row: SampledRow) -> GrammarMasks:
    """The mask of a lone rank's step whose model runs for as long as it takes."""
    masks = grammars.pending_masks([row], 1)
    assert masks is not None
    while not masks.are_due(lambda: True):
        masks.wait(_LONGEST_S)
    return masks.collect(lambda *numbers: [numbers])


def longest_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """Splits the text into the longest tokens, from its start. It is ASCII: only spaces are spelled differently."""
    vocabulary, spelled, tokens = tokenizer.get_vocab(), text.replace(" ", "Ġ"), []
    while spelled:
        piece = next(spelled[:size] for size in range(len(spelled), 0, -1) if spelled[:size] in vocabulary)
        tokens.append(vocabulary[piece])
        spelled = spelled[len(piece) :]
    return tokens


def _gaps(folder: Path, tokenizer: Tokenizer) -> tuple[list[float], list[float]]:
    """Seconds between tokens of some streams while an unconstrained one runs, and while a constrained one runs."""
    with Server(f"--model-id={random_model.make(folder, tokenizer)}") as server:
        rounds = [asyncio.run(_run(server.address, number)) for number in range(3)]
    return [gap for plain, _ in rounds for gap in plain], [
        gap for _, constrained in rounds for gap in constrained
    ]


async def _run(address: tuple[str, int], number: int) -> tuple[list[float], list[float]]:
    schema = {"type": "json_schema", "json_schema": {"name": "people", "schema": _ENDLESS}}
    plain = await _beside(address, f"{number} plain", {"ignore_eos": True})
    constrained = await _beside(address, f"{number} held", {"ignore_eos": False, "response_format": schema})
    return plain, constrained


async def _beside(address: tuple[str, int], name: str, options: dict[str, object]) -> list[float]:
    streams = [Stream() for _ in range(_NUM_STREAMS)]
    fifth = asyncio.create_task(complete(address, f"{name} fifth", _NUM_TOKENS + 100, options=options))
    await asyncio.gather(
        *(complete(address, f"{name} {index}", _NUM_TOKENS, stream) for index, stream in enumerate(streams))
    )
    last = await fifth
    # Only gaps while the fifth stream ran.
    return [
        after - before for stream in streams for before, after in pairwise(stream.at) if after <= last.at[-1]
    ]
