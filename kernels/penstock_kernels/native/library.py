"""Finds and loads the compiled library, once."""

import ctypes
from functools import cache
from pathlib import Path

import torch

# Of work bound by memory: below this many numbers, waking the other threads costs more than they save.
WORTH_THREADS = 1 << 16
# As in src/processor.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
_PATH = Path(__file__).parents[1] / "_native.so"


@cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built or does not load.

    Its threads are torch's own: it names OpenMP's functions without linking a runtime, so that the loader finds the
    one that torch brought. Two runtimes would each keep threads that spin while the other works.
    """
    assert torch.__version__, "imported first, for its OpenMP runtime"
    try:
        compiled = ctypes.CDLL(str(_PATH))
    except OSError:
        return None
    compiled.penstock_rotate.restype = ctypes.c_int64
    return compiled
