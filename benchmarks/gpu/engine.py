"""Part 4: the engine alone, on models of random weights, without router and network.

The floor of a decode step is what it must read, weights and keys and values, at the rate of a copy; that of a prompt is
its flop at the rate of a product, both measured in the same run.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest import mock

import torch

from benchmarks.gpu.engine_bench import EngineBench, Setting, load
from benchmarks.gpu.lines import Result
from benchmarks.gpu.models import write_folder
from benchmarks.gpu.once import Once
from benchmarks.gpu.run import Run, release


class Sizes(NamedTuple):
    """The sizes of this part: streams of decodes, context and steps of each; prompts; streams beside a chunk of one."""

    model: str
    others: tuple[str, ...]
    streams: tuple[int, ...]
    context: int
    steps: int
    prompts: tuple[int, ...]
    beside: tuple[int, ...]
    chunk: int
    # Adapters, and of which rank.
    adapters: tuple[int, int]


REAL = Sizes(
    "llama-3.1-8b",
    ("qwen3-0.6b", "mixtral-like"),
    (64, 1, 8, 256),
    1024,
    64,
    (1024, 8192),
    (8, 64),
    384,
    (8, 16),
)
TINY = Sizes("tiny", (), (4, 1), 64, 8, (64,), (2,), 6, (2, 3))


def settings(rehearse: bool) -> list[tuple[str, Setting, bool]]:
    """The engines of this part: what is special about each, its setting, and whether kernels are chained."""
    sizes = TINY if rehearse else REAL
    main = Setting(sizes.model, max(sizes.streams), max(sizes.prompts) + 2 * sizes.steps)
    can_chain = rehearse or torch.cuda.get_device_capability() >= (9, 0)
    return [
        ("graphs", main, False),
        *([("chained", main, True)] if can_chain else []),
        ("fp8 cache", replace(main, cache_dtype="fp8"), False),
        ("no graphs", replace(main, graphs=False), False),
        *(("graphs", replace(main, model=model), False) for model in sizes.others),
    ]


def run(run: Run) -> None:
    sizes = TINY if run.rehearse else REAL
    for title, setting, is_chained in settings(run.rehearse):
        with chaining(run.device) if is_chained else nullcontext():
            _measure(run, title, setting, sizes)


@contextmanager
def chaining(device: str) -> Iterator[None]:
    """Kernels are set up while the one before them ends, as if that had been measured to be faster; on a GPU."""
    if device == "cpu":
        yield
        return
    from penstock_kernels.gpu import chain
    from penstock_kernels.gpu.tiles import processor

    names = frozenset({processor(torch.device(device)).name})
    with mock.patch.object(chain, "MEASURED_FASTER", names):
        yield


def load_bench(setting: Setting, device: str) -> EngineBench:
    """An engine of this setting, ready to measure."""
    with TemporaryDirectory() as folder:
        engine = load(write_folder(setting.model, Path(folder)), device, setting)
    return EngineBench(setting, engine, device)


def _measure_adapters(measure: Callable[..., None], bench: Once[EngineBench], sizes: Sizes) -> None:
    """Measures the same steps with no adapter loaded, with some loaded and unused, and with another one in each row.

    The aims: at most 2 % more where they are unused, at most 10 % with one of rank 16 in each of 8 rows.
    """
    count, rank = sizes.adapters
    steps = partial(EngineBench.decode, num_rows=count, context=sizes.context, steps=sizes.steps)
    ids = Once(lambda: bench().load_adapters(count, rank))
    title = f"{count} adapters of rank {rank}"
    measure(f"before {title}", steps)
    measure(f"{title}, unused", lambda bench: [ids(), steps(bench)][1])
    measure(f"{title} in {count} rows", lambda bench: steps(bench, adapter_ids=ids()))


def _measure(run: Run, title: str, setting: Setting, sizes: Sizes) -> None:
    """All measurements of one engine. `title`: what is special about it."""
    bench, head = Once(lambda: load_bench(setting, run.device)), f"{setting.model}, {title}"

    def start() -> list[Result]:
        begun = time.perf_counter()
        bench()
        return [Result("time", time.perf_counter() - begun, "s", note="weights, graphs, warm-up")]

    def measure(name: str, measured: Callable[[EngineBench], list[Result]]) -> None:
        run.measure(f"{head}: {name}", lambda: measured(bench()))

    run.measure(f"{head}: start", start)
    for streams in sizes.streams:
        measure(
            f"decode {streams} x {sizes.context}",
            partial(EngineBench.decode, num_rows=streams, context=sizes.context, steps=sizes.steps),
        )
    if setting.graphs:
        for streams in sizes.streams:
            measure(f"bare graph of {streams}", partial(EngineBench.replay, num_rows=streams))
    if title == "graphs" and setting.model == sizes.model:
        _measure_adapters(measure, bench, sizes)
    for streams in sizes.beside:
        measure(
            f"chunks of {sizes.chunk} beside {streams} x {sizes.context}",
            partial(
                EngineBench.mixed,
                num_rows=streams,
                context=sizes.context,
                chunk=sizes.chunk,
                steps=min(sizes.steps, 16),
            ),
        )
    for length in sizes.prompts:
        measure(f"prompt of {length}", partial(EngineBench.prompt, length=length))
    bench.made.clear()
    release()
