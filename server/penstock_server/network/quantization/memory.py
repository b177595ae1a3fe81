"""Memory while quantized weights are read: what a matrix is repacked in goes back to the system at once."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

# Parameters of glibc's mallopt. The last two are the values that it comes to by itself, once large blocks were freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_APART = 128 << 10
_USUAL_MMAP, _USUAL_TRIM = 32 << 20, 64 << 20


@contextmanager
def blocks_apart() -> Iterator[None]:
    """Large blocks are mappings of their own. In one heap, the holes between codes that stay, which come and go beside
    what they are made of, took up to seven times the memory of the codes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_THRESHOLD, _APART)
    try:
        yield
    finally:
        # Later a mapping for each block would be slow.
        mallopt(_MMAP_THRESHOLD, _USUAL_MMAP)
        mallopt(_TRIM_THRESHOLD, _USUAL_TRIM)
