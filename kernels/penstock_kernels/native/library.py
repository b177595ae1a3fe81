"""Finds and loads the compiled library, once."""

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

# Numbers that are read or multiplied: below so many, to share them with other threads costs more than these save.
WORTH_THREADS = 1 << 15
# Numbers of the types; mirrors src/processor.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1}
# Makes the error of an op that failed.
Failure = Callable[[], Exception]
_PATH = Path(__file__).parents[1] / "_native.so"


@cache
def library() -> ctypes.CDLL | None:
    """The library, or None where it was not built or does not load. Its threads are its own, see src/team.h."""
    try:
        compiled = ctypes.CDLL(str(_PATH))
    except OSError:
        return None
    compiled.penstock_replay.restype = ctypes.c_int64
    compiled.penstock_decode_step.restype = ctypes.c_int64
    return compiled


class Tape(Protocol):
    """Records calls, see `recording`."""

    def add(self, op: int, call: ctypes.Structure, kept: tuple[object, ...], failure: Failure) -> None:
        """Record a call: the address of an op and its arguments, which point into what is kept."""


class _Thread(threading.local):
    tape: Tape | None = None
    # The number of computations that were recorded.
    count = 0


recorded = _Thread()


def address(name: str) -> int:
    """The address of an op of the library, which must be there."""
    return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0


def run(name: str, call: ctypes.Structure, *kept: object, failure: Failure = RuntimeError) -> None:
    """Call an op of the library. `kept`: all that its arguments point to."""
    compiled = library()
    assert compiled is not None, "called only where `supports` is true"
    op = getattr(compiled, name)  # an attribute is looked up once, an index every time
    if recorded.tape is not None:
        recorded.tape.add(address(name), call, kept, failure)
    if op(ctypes.byref(call)) != 0:
        raise failure()
