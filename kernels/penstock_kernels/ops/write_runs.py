"""Many short writes into one flat buffer of integers: how a step's changes reach tensors that stay on the device."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require


def write_runs(target: torch.Tensor, values: torch.Tensor, runs: torch.Tensor, max_len: int) -> None:
    """Copy runs of `values` to places of `target`, in place, all in one launch.

    target: [num_places] int32; values: [num_values] int32; runs: [num_runs, 3] int32: first value, first place, length;
    all contiguous. max_len: at least the longest length, so that none has to be read on the host. Runs lie within both
    tensors and no place is written twice: the caller checked that, the op does not.
    """
    op = "write_runs"
    require(runs.dim() == 2 and runs.shape[1] == 3, f"{op}: runs {tuple(runs.shape)}, expected (num_runs, 3)")
    for name, tensor in (("target", target), ("values", values), ("runs", runs)):
        require(
            tensor.dtype == torch.int32 and tensor.is_contiguous() and (tensor.dim() == 1 or tensor is runs),
            f"{op}: {name} must be contiguous int32, not {tensor.dtype} {tuple(tensor.shape)}",
        )
    require(max_len >= 0, f"{op}: max_len {max_len}")
    if runs.shape[0] == 0 or max_len == 0:
        return
    table.write_runs(target, values, runs, max_len)
