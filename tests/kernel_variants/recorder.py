"""Records the variant of every launch under Triton's interpreter, which compiles nothing by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernel_variants.variant import Variant, from_line, to_line, variant_of


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


def write(variants: set[Variant], path: Path) -> None:
    path.write_text("".join(sorted(f"{to_line(variant)}\n" for variant in variants)))


def read(path: Path) -> list[Variant]:
    return [from_line(line) for line in path.read_text().splitlines()]
