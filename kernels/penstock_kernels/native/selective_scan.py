"""The scan of Mamba-1 in C, which reads and writes the states of slots where they are."""

import torch

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.recurrent_call import RecurrentOp, Tensors

# `Selective` of src/selective_scan.c.
_OP = RecurrentOp(
    "penstock_select",
    "penstock_can_select",
    "x step inward outward",
    "step_bias rate skip",
    "num_channels state_size",
)


def supports(
    x: torch.Tensor,
    step: torch.Tensor,
    step_bias: torch.Tensor,
    rate: torch.Tensor,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `selective_scan` can take these, as the op has checked them."""
    return _OP.takes((x, step, inward, outward), state, rate.shape)


def selective_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    step_bias: torch.Tensor,
    rate: torch.Tensor,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A token's bits do not depend on what else is computed. `max_lanes`: see `paged_attention`."""
    output = torch.empty(x.shape, dtype=x.dtype)
    tensors = Tensors((x, step, inward, outward), (step_bias, rate, skip), state, output)
    return _OP(spans, tensors, rate.shape, x.numel() * rate.shape[1], max_lanes)
