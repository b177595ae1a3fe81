"""Short convolutions in C: otherwise a dozen ops of PyTorch, and copies of all inputs."""

import torch

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.recurrent_call import RecurrentOp, Tensors

# `CausalConv` of src/causal_conv.c.
_OP = RecurrentOp(
    "penstock_convolve", "penstock_can_convolve", "x", "weight bias", "num_channels width has_silu"
)


def supports(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, state: torch.Tensor, *_: object
) -> bool:
    """Whether `causal_conv` can take these, as the op has checked them."""
    return weight.is_contiguous() and _OP.takes((x,), state, weight.shape)


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A token's bits do not depend on what else is computed. `max_lanes`: see `paged_attention`."""
    tensors = Tensors((x,), (weight, bias), state, torch.empty(x.shape, dtype=x.dtype))
    return _OP(spans, tensors, (*weight.shape, silu), 8 * x.numel(), max_lanes)
