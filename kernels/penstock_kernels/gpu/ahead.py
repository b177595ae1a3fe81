"""Compiles what is launched in place of running it: many variants at a time, before the first step is to be fast.

Triton compiles a variant when it is first launched, on the thread that launches it, which takes a second or so. Here a
launch only says which variant it needs, and threads compile: most of the work is done outside of Python. Triton keeps
the results on disk (TRITON_CACHE_DIR, else ~/.triton/cache), so that the next process only reads them.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import triton
from triton.runtime.jit import JITFunction


@dataclass
class Compiled:
    """How many variants were compiled, and how many had been before and were found on disk."""

    num_new: int = 0
    num_found: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, *, cache_hit: bool, **_: Any) -> None:
        """Triton calls it for every variant, on any thread."""
        with self._lock:
            self.num_found += cache_hit
            self.num_new += not cache_hit


@contextmanager
def compiling_only() -> Iterator[Compiled]:
    """In this context launches run nothing, and results are zeros and true; at its end all variants are compiled.

    A variant that does not compile raises its error when it is launched later.
    """
    compiled, run, empty = Compiled(), JITFunction.run, torch.empty

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **kwargs)

    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        # Tokens and places that no kernel writes must still be some, and flags say that all is well.
        made = empty(*args, **kwargs)
        return made.fill_(made.dtype == torch.bool)

    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
        mock.patch.object(JITFunction, "run", compile_only),
        mock.patch.object(torch, "empty", zeros),
        mock.patch.object(triton.knobs.compilation, "listener", compiled.count),
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        yield compiled
