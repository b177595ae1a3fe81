"""A decode step of a model that attends to latents: in C and recorded, beside the reference op by op.

Both engines are in this process and take turns. Sequences are admitted at their context, over a cache of noise, as if a
prefix were found there: what a step costs does not depend on the numbers.
"""

import time
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from penstock_server.base.config import CacheConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

from benchmarks import local_engine
from benchmarks.figure import Figure
from benchmarks.serving import random_model

_BLOCK_SIZE = 64
_ROUNDS = 20
_WARM_UP = 5
# The lowest multiple of the reference's speed that passes, by rows and context.
_FLOORS = {(1, 100): 1.2, (8, 100): 1.2, (1, 4000): 2.0, (8, 4000): 2.0}


def steps() -> list[Figure]:
    """Times the reference's speed, for each number of rows and each context."""
    rows, contexts = (max(numbers) for numbers in zip(*_FLOORS, strict=True))
    blocks = -(-(contexts + _WARM_UP + _ROUNDS) // _BLOCK_SIZE)
    sizes = CacheConfig(None, None, rows, rows * blocks, _BLOCK_SIZE)
    with TemporaryDirectory() as temporary:
        folder = random_model.make_latent(Path(temporary))
        engines = [
            local_engine.load(folder, sizes, dtype="float32", attention_backend=name)
            for name in ("native", "reference")
        ]
    for engine in engines:
        engine.cache.pools[0].normal_()
    return [_figure(engines, blocks, *case, floor) for case, floor in _FLOORS.items()]


def _figure(engines: list[Engine], blocks: int, rows: int, context: int, floor: float) -> Figure:
    numbers = count(1)
    times: list[list[float]] = [[] for _ in engines]
    for done in range(_WARM_UP + _ROUNDS):
        for engine, spent in zip(engines, times, strict=True):
            began = time.perf_counter()
            _step(engine, next(numbers), blocks, rows, context, done)
            spent.append(time.perf_counter() - began)
    ours, theirs = (median(spent[_WARM_UP:]) for spent in times)
    for engine in engines:
        engine.launch(Plan(1, next(numbers), retired=list(range(rows)))).resolve()
    return Figure(
        f"a decode step over latents, rows {rows}, context {context:,}: times the reference's speed",
        theirs / ours,
        at_least=floor,
        note=f"{1e3 * ours:.1f} and {1e3 * theirs:.1f} ms, medians of {_ROUNDS}; {torch.get_num_threads()} threads",
    )


def _step(engine: Engine, number: int, blocks: int, rows: int, context: int, done: int) -> None:
    """The decode of all rows that comes after so many."""
    spans = [Span(slot, context - 1 + done, 1) for slot in range(rows)]
    admitted = [] if done else [_admit(slot, context, blocks) for slot in range(rows)]
    errors = engine.launch(Plan(1, number, admitted=admitted, spans=spans)).resolve().errors
    assert not errors, errors


def _admit(slot: int, context: int, blocks: int) -> Admit:
    tokens = [3 + (7 * position + slot) % 90 for position in range(context)]
    held = list(range(slot * blocks, (slot + 1) * blocks))
    return Admit(slot, tokens, context, held, SamplingParams())
