"""Gives memory back to the system and to the device that nothing refers to any more."""

import ctypes
import gc

import torch


def free_memory() -> None:
    """Collect cycles, and have both allocators keep nothing of what is free."""
    gc.collect()
    torch.cuda.empty_cache()  # nothing where no GPU is in use
    # glibc keeps freed blocks below its threshold for the process.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
