"""Tells a lack of memory from other errors."""

import torch


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; torch's CPU allocator raises a bare RuntimeError."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
