"""The gated delta rule in C, which reads and writes the matrices of slots where they are."""

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.native.recurrent_call import RecurrentOp, Tensors
from penstock_kernels.native.recurrent_spans import is_dense

# `DeltaRule` of src/delta_rule.c.
_OP = RecurrentOp(
    "penstock_correct",
    "penstock_can_correct",
    "query key value beta",
    "",
    "num_key_heads num_heads key_dim value_dim by_row",
    forgets=True,
)


def supports(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    *_: object,
) -> bool:
    """Whether `gated_delta_rule` can take these, as the op has checked them."""
    return is_dense(step) and _OP.takes((query, key, value, beta), state, state.shape[2:])


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
    max_lanes: int = 0,
) -> torch.Tensor:
    """The op in C. A token's bits do not depend on what else is computed. `max_lanes`: see `paged_attention`."""
    output = torch.empty(value.shape, dtype=value.dtype)
    tensors = Tensors((query, key, value, beta), (), state, output, (decay, step))
    sizes = (query.shape[1], value.shape[1], *state.shape[2:], step.dim() == 3)
    return _OP(spans, tensors, sizes, value.numel() * state.shape[2], max_lanes)
