"""Scatter of runs of integers: one launch for everything that a step changes in a flat buffer."""

import torch
import triton
import triton.language as tl

# Integers of a program: 4 per thread at 4 warps. Most runs are shorter. Unmeasured.
_BLOCK = 512


@triton.jit(do_not_specialize_on_alignment=["values_ptr", "runs_ptr"])
def _write_runs_kernel(target_ptr, values_ptr, runs_ptr, BLOCK: tl.constexpr):
    run = tl.program_id(0).to(tl.int64)
    first = tl.load(runs_ptr + 3 * run).to(tl.int64)
    place = tl.load(runs_ptr + 3 * run + 1).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < tl.load(runs_ptr + 3 * run + 2)
    values = tl.load(values_ptr + first + offsets, mask=mask, other=0)
    tl.store(target_ptr + place + offsets, values, mask=mask)


def write_runs(target: torch.Tensor, values: torch.Tensor, runs: torch.Tensor, max_len: int) -> None:
    _write_runs_kernel[(runs.shape[0], triton.cdiv(max_len, _BLOCK))](
        target, values, runs, BLOCK=_BLOCK, num_warps=4
    )
