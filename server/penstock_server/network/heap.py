"""Sets how glibc's heap treats large blocks: when their memory goes back to the system, and when it does not.

Other C libraries are left as they are.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_APART = 128 << 10
# The values that it comes to by itself, once large blocks were freed.
_USUAL_MMAP, _USUAL_TRIM = 32 << 20, 64 << 20
# More than what steps free at a time in blocks that are no mapping of their own.
_KEPT = 256 << 20


@contextmanager
def blocks_apart() -> Iterator[None]:
    """Large blocks are mappings of their own. In one heap, the holes between codes that stay, which come and go beside
    what they are made of, took up to seven times the memory of the codes.
    """
    if not _set(_MMAP_THRESHOLD, _APART):
        yield
        return
    try:
        yield
    finally:
        # Later a mapping for each block would be slow.
        _set(_MMAP_THRESHOLD, _USUAL_MMAP)
        _set(_TRIM_THRESHOLD, _USUAL_TRIM)


def keep_freed_blocks() -> None:
    """Keep the memory that a step frees in the process for the next step, until `malloc_trim`.

    Else the system takes it back at once and gives it again page by page, which was up to a quarter of the time of the
    demo model's prompts in bfloat16.
    """
    _set(_MMAP_THRESHOLD, _USUAL_MMAP)
    _set(_TRIM_THRESHOLD, _KEPT)
    _set(_TOP_PAD, _KEPT // 4)


def _set(parameter: int, value: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(parameter, value))
