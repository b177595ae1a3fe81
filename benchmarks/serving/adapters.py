"""The cost of LoRA adapters of rank 16 on a CPU.

Decode steps of one engine in this process: none loaded, eight in eight rows, and eight loaded and unused; of layers as
an 8B-parameter model has them, and of a small model, whose weights are few beside those of eight adapters. And a whole
server: 500 adapters of which 50 are asked for, compared with one. What is compared takes turns, so that other load of
the machine affects both alike. Processor time counts all threads.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from penstock_server.base.config import CacheConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.adapters import HostAdapter
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import local_engine
from benchmarks.adapter_folder import make_adapter
from benchmarks.figure import Figure
from benchmarks.server import Server
from benchmarks.serving import random_model
from benchmarks.streams import complete

TITLE = "LoRA adapters of rank 16 on all linear layers (CPU)"
_NUM_ROWS = 8
_RANK = 16
_ROUNDS, _STEPS, _UNMEASURED = 36, 4, 2
_PROMPT_LEN, _BLOCK, _MAX_LEN = 16, 16, 512
# For the server: the adapters that it knows, the adapters that requests ask for, and the requests of a run.
_NUM_KNOWN, _NUM_USED = 500, 50
_RUNS, _NUM_REQUESTS, _NUM_CHARACTERS, _NUM_NEW = 9, 40, 64, 16


class _Cost(NamedTuple):
    """The cost of one step, in milliseconds."""

    wall: float
    processor: float


class _Shape(NamedTuple):
    """A model whose steps are measured."""

    name: str
    config: LlamaConfig
    dtype: str


def measure() -> list[Figure]:
    """Steps, then the server."""
    small = _Shape("110M parameters, float32", random_model.config_110m(), "float32")
    large = _Shape("layers of 8B, bfloat16", random_model.config_of_8b_layers(), "bfloat16")
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        figures = [figure for shape in (large, small) for figure in _steps(shape, root / shape.dtype)]
        return [*figures, *_served(root / small.dtype / "model", root / "served")]


def _steps(shape: _Shape, root: Path) -> list[Figure]:
    model = root / "model"
    torch.manual_seed(7)
    LlamaForCausalLM(shape.config).to(getattr(torch, shape.dtype)).save_pretrained(model)
    random_model.save_tokenizer(model)
    engine = _engine(model, shape.dtype)
    folders = [
        make_adapter(root / str(number), shape.config.to_dict(), number, _RANK) for number in range(_NUM_ROWS)
    ]
    rounds = [_round(engine, folders) for _ in range(_ROUNDS + 1)][1:]
    none, used, unused = zip(*rounds, strict=True)
    weights = (model / "model.safetensors").stat().st_size
    share = 100 * sum(it.num_bytes for it in _load(engine, folders)) / weights
    return [
        Figure(f"{shape.name}: a step of {_NUM_ROWS} rows, no adapter", median(it.wall for it in none), "ms"),
        Figure(f"{shape.name}: bytes of eight adapters, of those of the weights", share, "%"),
        *_compared(f"{shape.name}: eight loaded, none used", unused, none, 1.02),
        *_compared(f"{shape.name}: eight in eight rows", used, none, 1.1),
    ]


def _compared(name: str, costs: Sequence[_Cost], base: Sequence[_Cost], at_most: float) -> list[Figure]:
    pairs = list(zip(costs, base, strict=True))
    wall = [cost.wall / other.wall for cost, other in pairs]
    processor = [cost.processor / other.processor for cost, other in pairs]
    return [
        Figure(f"{name}: times the duration", median(wall), at_most=at_most, note=_spread(wall)),
        Figure(f"{name}: times the processor time", median(processor), note=_spread(processor)),
    ]


def _spread(ratios: list[float]) -> str:
    return (
        f"median of {len(ratios)}, {min(ratios):.2f} to {max(ratios):.2f}; {torch.get_num_threads()} threads"
    )


def _engine(model: Path, dtype: str) -> Engine:
    cache = CacheConfig(_MAX_LEN, 2048, _NUM_ROWS, _NUM_ROWS * _MAX_LEN // _BLOCK, _BLOCK)
    return local_engine.load(model, cache, dtype=dtype)


def _load(engine: Engine, folders: list[Path]) -> list[HostAdapter]:
    """All of them; what is loaded stays so."""
    return [engine.slots.adapters.load(folder, "", folder.name) for folder in folders]


def _round(engine: Engine, folders: list[Path]) -> tuple[_Cost, _Cost, _Cost]:
    """With none, with all of them in use, and with all of them on the device while nobody uses one.

    Steps with none are taken before and behind those with unused ones: a machine that gets slower slows both.
    """
    rows = [""] * _NUM_ROWS
    engine.slots.adapters.forget()
    _start(engine, rows)
    before = _decode(engine, 0)
    _load(engine, folders)
    unused = _decode(engine, _STEPS)
    engine.slots.adapters.forget()
    behind = _decode(engine, 2 * _STEPS)
    loaded = _load(engine, folders)
    _start(engine, [it.adapter_id for it in loaded])
    return _between(before, behind), _decode(engine, 0), unused


def _between(first: _Cost, second: _Cost) -> _Cost:
    return _Cost((first.wall + second.wall) / 2, (first.processor + second.processor) / 2)


def _start(engine: Engine, adapter_ids: list[str]) -> None:
    """A prompt for each row, and two steps that are not measured: they may be recorded."""
    engine.clear()
    per_row = _MAX_LEN // _BLOCK
    admitted = [
        Admit(
            slot,
            [3 + slot] * _PROMPT_LEN,
            _PROMPT_LEN,
            list(range(slot * per_row, (slot + 1) * per_row)),
            SamplingParams(),
            adapter_id=adapter_id,
        )
        for slot, adapter_id in enumerate(adapter_ids)
    ]
    spans = [Span(slot, 0, _PROMPT_LEN) for slot in range(_NUM_ROWS)]
    engine.launch(Plan(1, 1, admitted=admitted, spans=spans)).resolve()
    for step in range(-_UNMEASURED, 0):
        _step(engine, step)


def _decode(engine: Engine, first: int) -> _Cost:
    """Steps of one token for each row."""
    wall, processor = time.perf_counter(), time.process_time()
    for step in range(first, first + _STEPS):
        _step(engine, step)
    seconds = time.perf_counter() - wall, time.process_time() - processor
    return _Cost(*(1000 * each / _STEPS for each in seconds))


def _step(engine: Engine, step: int) -> None:
    number = _UNMEASURED + step
    spans = [Span(slot, _PROMPT_LEN + number, 1) for slot in range(_NUM_ROWS)]
    outcome = engine.launch(Plan(1, number + 2, spans=spans)).resolve()
    assert not outcome.errors, outcome.errors


def _served(model: Path, root: Path) -> list[Figure]:
    """Tokens a second, where each request draws its adapter by Zipf's law, and where all have the same."""
    config, modules = random_model.config_110m().to_dict(), ("self_attn.q_proj", "self_attn.v_proj")
    names = [f"a{number}" for number in range(_NUM_KNOWN)]
    folders = [make_adapter(root / name, config, number, _RANK, modules) for number, name in enumerate(names)]
    known = ",".join(f"{name}={folder}" for name, folder in zip(names, folders, strict=True))
    used = names[:_NUM_USED]
    weights = [1 / (rank + 1) for rank in range(_NUM_USED)]
    with Server(f"--model-id={model}", "--dtype=float32", f"--lora-adapters={known}") as server:
        runs = []
        for number in range(_RUNS + 1):
            drawn = random.Random(number).choices(used, weights, k=_NUM_REQUESTS)
            spread = asyncio.run(_run(server.address, drawn))
            runs.append((spread, asyncio.run(_run(server.address, [names[0]] * _NUM_REQUESTS))))
        spreads, ones = zip(*runs[1:], strict=True)
    name = f"{_NUM_KNOWN} known, {_NUM_USED} used by Zipf's law, {_NUM_ROWS} requests at once"
    ratios = [spread / one for spread, one in zip(spreads, ones, strict=True)]
    return [
        Figure(f"{name}: times the tokens/s of one", median(ratios), at_least=0.9, note=_spread(ratios)),
        Figure(name, median(spreads), "tokens/s", note="queries and values; as many loaded as by default"),
        Figure("one adapter for all of them", median(ones), "tokens/s"),
    ]


async def _run(address: tuple[str, int], adapters: list[str]) -> float:
    """A closed loop of as many clients as rows; prompts differ from the first character on."""
    waiting = iter(enumerate(adapters))
    started = time.perf_counter()
    await asyncio.gather(*(_ask(address, waiting) for _ in range(_NUM_ROWS)))
    return len(adapters) * _NUM_NEW / (time.perf_counter() - started)


async def _ask(address: tuple[str, int], waiting: Iterator[tuple[int, str]]) -> None:
    for number, adapter in waiting:
        prompt = f"{chr(65 + number)}{random.random():.17f}".ljust(_NUM_CHARACTERS, "x")
        done = await complete(address, prompt, _NUM_NEW, options={"model": adapter})
        assert done.usage["completion_tokens"] == _NUM_NEW
