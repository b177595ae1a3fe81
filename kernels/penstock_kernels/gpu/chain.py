"""Programmatic dependent launch: a kernel of a chain is set up while the one before it ends, and waits on the device.

Every kernel of the chain waits first, in all of its programs and before any branch: then all that was launched before
is done, whoever launched it, and what it wrote is seen. So a kernel needs to know nothing of its neighbours. Kernels of
others, such as cuBLAS, are launched as ever: they begin when the one before them is done, which has waited itself. One
of ours behind them waits until they are done, too. Behind its wait a kernel lets the next be set up, which then waits.

From sm_90 on, where it was measured to be faster; `chained` is the only switch.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from penstock_kernels.gpu.tiles import processor

# Names of devices, of sm_90 or later. Filled from part 4 of benchmarks/gpu.sh, which measures decodes with the chain
# ("…, chained: …") beside those without it ("…, graphs: …"). Nothing was measured yet.
MEASURED_FASTER: frozenset[str] = frozenset()


@triton.jit
def begin(CHAINED: tl.constexpr):
    """Every kernel of the chain calls it first."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


def chained(device: torch.device) -> dict[str, bool]:
    """The additional arguments for launches of kernels of the chain."""
    if processor(device).name not in MEASURED_FASTER:
        return {"CHAINED": False}
    return {"CHAINED": True, "launch_pdl": True}
