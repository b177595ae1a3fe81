"""Sums over the ranks of a group through memory that all of them reach, for tensors as small as those of a decode step.

The time of such a sum is that of meeting the other ranks, not of moving bytes. Here they meet once, and what reads the
shares of all norms their sum, too. Unmeasured on a device.
"""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.peers import Peers


def all_reduce(x: torch.Tensor, peers: Peers) -> torch.Tensor:
    """The sum over all ranks, in place: added in float32 in the order of ranks, so that all ranks have the same bits.

    x: [num_rows, dim], contiguous, as `peers.fits` has it. All ranks must call it with the same shape and type.
    """
    _check("all_reduce", x, peers)
    return table.all_reduce(x, peers)


def all_reduce_add_rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor,
    weight_offset: float,
    peers: Peers,
) -> torch.Tensor:
    """`rms_norm` of the sum over all ranks, and of `residual`, which is updated in place. x is undefined afterwards.

    As `all_reduce` and `rms_norm`; weight: [dim]. On some ranks it may be these two, one after the other.
    """
    op = "all_reduce_add_rms_norm"
    _check(op, x, peers)
    require(
        weight.shape == x.shape[1:] and weight.is_contiguous(),
        lambda: f"{op}: weight {tuple(weight.shape)} against x {tuple(x.shape)}",
    )
    require(
        residual.shape == x.shape and residual.is_contiguous(),
        lambda: f"{op}: residual {tuple(residual.shape)} against x {tuple(x.shape)}",
    )
    require_same_dtype(op, x=x, weight=weight, residual=residual)
    return table.all_reduce_add_rms_norm(x, weight, eps, residual, weight_offset, peers)


def _check(op: str, x: torch.Tensor, peers: Peers) -> None:
    require(
        peers.fits(x) and x.is_contiguous(),
        lambda: f"{op}: x {tuple(x.shape)} against {peers.max_rows} rows of {peers.row_bytes} bytes",
    )
