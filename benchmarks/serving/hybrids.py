"""Models with recurrent layers, latents or unlike layers: what a token costs at any context, and tokens a second.

The cost is that of the recurrent layers of one engine in this process, timed layer by layer in a decode step, while
three sequences of very different lengths take turns; of latents that of a whole step (`latents`). Tokens a second are
compared with transformers `generate`, and with llama.cpp's server where LLAMA_SERVER names it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from penstock_server.base.config import CacheConfig, CudaConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.layers.delta import DeltaLayer
from torch import nn
from transformers import AutoModelForCausalLM

from benchmarks import local_engine
from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import latents, random_model
from benchmarks.serving.beside_llama_cpp import beside_llama_cpp, binary
from benchmarks.serving.decoding import compare

TITLE = "Recurrent layers and latents: a token at any context, and beside transformers (CPU)"
_CONTEXTS = (100, 10_000, 100_000)
_MOST_GROWTH = 1.1
_ROUNDS = 100
_WARM_UP = 10
_BLOCK_SIZE = 64
# The lowest multiples of transformers' and llama.cpp's tokens/s that pass, for one request and for four at once.
_FLOORS, _FLOORS_OF_LLAMA_CPP = {1: 2.0, 4: 2.0}, {1: 1.0, 4: 1.0}
# Shapes, and what llama.cpp's converter is to be told about them; None: it wants the published vocabulary.
_SHAPES: tuple[tuple[str, Callable[[Path], Path], tuple[str, ...] | None], ...] = (
    ("Qwen3-Next's shape", random_model.make_next, ("--no-mtp",)),
    ("DeepSeek's shape", random_model.make_latent, ()),
    ("Gemma 4's shape", random_model.make_unlike_layers, None),
)


def measure() -> list[Figure]:
    """First the cost of a token, then all shapes."""
    figures = [*_cost_of_a_token(), *latents.steps()]
    for name, make, flags in _SHAPES:
        with TemporaryDirectory() as temporary:
            folder = make(Path(temporary) / "model")
            figures += _beside_transformers(name, folder)
            if (llama_server := binary()) and flags is not None:
                figures += beside_llama_cpp(llama_server, name, folder, _FLOORS_OF_LLAMA_CPP, flags)
    return figures


def _beside_transformers(name: str, folder: Path) -> list[Figure]:
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with Server(f"--model-id={folder}", "--dtype=float32") as server:
        return [
            figure
            for count, floor in _FLOORS.items()
            for figure in compare(server, reference, f"{name}, {count} at once", count, floor)
        ]


def _cost_of_a_token() -> list[Figure]:
    with TemporaryDirectory() as temporary:
        folder = random_model.make_long_hybrid(Path(temporary), _CONTEXTS[-1] + 2 * _ROUNDS)
        num_blocks = sum(-(-(context + 2 * _ROUNDS) // _BLOCK_SIZE) + 1 for context in _CONTEXTS)
        sizes = CacheConfig(None, None, len(_CONTEXTS), num_blocks, _BLOCK_SIZE)
        # Op by op, so that layers can be timed.
        engine = local_engine.load(folder, sizes, cuda=CudaConfig(()))
        times = _timed_steps(engine)
    shortest = median(times[_CONTEXTS[0]])
    note = f"median of {_ROUNDS} steps, 3 layers"
    return [
        Figure(
            f"recurrent layers of a decode at context {context:,}, times that at {_CONTEXTS[0]}",
            median(found) / shortest,
            at_most=_MOST_GROWTH,
            note=f"{1e6 * median(found):.0f} µs; {note}",
        )
        for context, found in times.items()
    ]


def _timed_steps(engine: Engine) -> dict[int, list[float]]:
    """Seconds in recurrent layers of every step, by context. Steps of the contexts take turns."""
    _read_prompts(engine)
    number = 10**6
    times: dict[int, list[float]] = {context: [] for context in _CONTEXTS}
    with _watched(engine.model) as spent:
        for done in range(_WARM_UP + _ROUNDS):
            for slot, context in enumerate(_CONTEXTS):
                spent[0] = 0.0
                number += 1
                engine.launch(Plan(1, number, spans=[Span(slot, context + done, 1)])).resolve()
                if done >= _WARM_UP:
                    times[context].append(spent[0])
    return times


def _read_prompts(engine: Engine) -> None:
    """One sequence for each context, computed up to there."""
    most, first_block, number = engine.slots.limits.max_step_tokens, 0, 0
    for slot, context in enumerate(_CONTEXTS):
        count = -(-(context + 2 * _ROUNDS) // _BLOCK_SIZE)
        blocks = list(range(first_block, first_block + count))
        first_block += count
        tokens = [3 + position % 90 for position in range(context)]
        admitted = [Admit(slot, tokens, context, blocks, SamplingParams())]
        for start in range(0, context, most):
            number += 1
            span = Span(slot, start, min(most, context - start))
            errors = engine.launch(Plan(1, number, admitted=admitted, spans=[span])).resolve().errors
            assert not errors, errors
            admitted = []


@contextmanager
def _watched(model: Any) -> Iterator[list[float]]:
    """The time that all recurrent layers took together since it was last set to 0."""
    spent, began = [0.0], [0.0]

    def begin(_layer: nn.Module, _arguments: Any) -> None:
        began[0] = time.perf_counter()

    def end(_layer: nn.Module, _arguments: Any, _found: Any) -> None:
        spent[0] += time.perf_counter() - began[0]

    layers = [module for module in model.modules() if isinstance(module, DeltaLayer)]
    assert layers, "the model has recurrent layers"
    hooks = [layer.register_forward_pre_hook(begin) for layer in layers]
    hooks += [layer.register_forward_hook(end) for layer in layers]
    yield spent
    for hook in hooks:
        hook.remove()
