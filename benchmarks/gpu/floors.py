"""The best rates of this device, measured: the floors of everything else are bytes and flops at these rates."""

from dataclasses import dataclass
from functools import cache

import torch

from benchmarks.gpu.clock import time_call


@dataclass(frozen=True)
class Rates:
    """Bytes per second of a large copy, read and written; flop per second of a large bf16 product."""

    copy: float
    product: float

    def floor_us(self, num_bytes: float, flops: float = 0.0) -> float:
        """The least time of a computation that moves these bytes and does these operations."""
        return max(num_bytes / self.copy, flops / self.product) * 1e6


@cache
def rates(device: str) -> Rates:
    """Measured once in a process; on a CPU of float32, and small."""
    count, size = (2**30, 8192) if device == "cuda" else (2**20, 256)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    source = torch.ones(count, dtype=dtype, device=device)
    target, left = torch.empty_like(source), torch.randn(size, size, device=device).to(dtype)
    copy = time_call(lambda: target.copy_(source), device).median
    product = time_call(lambda: left @ left, device).median
    return Rates(2 * source.nbytes / copy * 1e6, 2 * size**3 / product * 1e6)
