"""The scan of Mamba-2 in C, which reads and writes the matrices of slots where they are."""

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.recurrent_call import RecurrentOp, Tensors
from penstock_kernels.native.recurrent_spans import is_dense

# `StateSpace` of src/state_space.c.
_OP = RecurrentOp(
    "penstock_scan",
    "penstock_can_scan",
    "x inward outward",
    "skip",
    "num_heads num_groups dim state_size",
    forgets=True,
)


def supports(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `state_space_scan` can take these, as the op has checked them."""
    return is_dense(step) and _OP.takes((x, inward, outward), state, state.shape[2:])


def state_space_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A token's bits do not depend on what else is computed. `max_lanes`: see `paged_attention`."""
    output = torch.empty(x.shape, dtype=x.dtype)
    tensors = Tensors((x, inward, outward), (skip,), state, output, (decay, step))
    sizes = (x.shape[1], inward.shape[1], *state.shape[2:])
    return _OP(spans, tensors, sizes, x.numel() * state.shape[3], max_lanes)
