"""Records the variant of every launch: under Triton's interpreter, which compiles nothing itself, or without a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from kernel_variants.variant import Variant, from_line, to_line, variant_of

# What shards launched in this process, by any of its tests. `make test` has it written at the end, and compiles it.
SERVED: set[Variant] = set()


@contextmanager
def recording() -> Iterator[set[Variant]]:
    """The variants of all launches in this context."""
    from triton.runtime.interpreter import InterpretedFunction

    run, seen = InterpretedFunction.run, set[Variant]()

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        seen.add(variant_of(self, args, kwargs))
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = record
    try:
        yield seen
    finally:
        InterpretedFunction.run = run


@contextmanager
def recording_only() -> Iterator[set[Variant]]:
    """The variants that a GPU would launch, recorded on a CPU without the interpreter. Results are zeros."""
    from triton.runtime.jit import JITFunction

    seen, empty = set[Variant](), torch.empty

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.add(variant_of(self, args, kwargs))

    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(made.dtype == torch.bool)

    with (
        mock.patch.object(JITFunction, "run", record),
        mock.patch.object(torch, "empty", zeros),
        mock.patch("penstock_kernels.base.devices.INTERPRETS", True),
    ):
        try:
            yield seen
        finally:
            SERVED.update(seen)


def write(variants: set[Variant], path: Path) -> None:
    path.write_text("".join(sorted(f"{to_line(variant)}\n" for variant in variants)))


def read(path: Path) -> list[Variant]:
    return [from_line(line) for line in path.read_text().splitlines()]
