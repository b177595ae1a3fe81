"""Memory that is written for the first time: the system clears it then, which takes longer than to write it."""

import ctypes

from penstock_kernels.native.library import library


def can_touch() -> bool:
    """Whether the library is there."""
    return library() is not None


def touch(address: int, num_bytes: int) -> None:
    """Make the system give the process this memory, which stays as it is. Other threads go on, and may write there."""
    compiled = library()
    assert compiled is not None, "called only where `can_touch` is true"
    compiled.penstock_touch(ctypes.c_void_p(address), ctypes.c_int64(num_bytes))
