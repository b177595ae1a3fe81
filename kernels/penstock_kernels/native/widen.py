"""Rows of 16-bit numbers as 32-bit ones, in C.

PyTorch's threads would share a larger conversion, and then wait in a loop for a while, on the core that a helper of the
next product needs.
"""

import torch

from penstock_kernels.native.library import run
from penstock_kernels.native.lowering import move


def widened(x: torch.Tensor) -> torch.Tensor:
    """The numbers in 32 bits, row behind row; the same tensor where they are."""
    if x.dtype == torch.float32:
        return x.contiguous()
    rows = torch.empty(x.shape, dtype=torch.float32)
    called = move("penstock_move", x, rows)
    if called is None:
        # There are no numbers, or they do not lie in rows.
        return x.contiguous().to(torch.float32)
    run(called.name, called.call, *called.kept)
    return rows
