"""The state space of Mamba-1: a few numbers for each channel, each of which forgets at a rate of its own."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.recurrent_spans import RecurrentSpans


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
) -> torch.Tensor:
    """For each token and channel: s = softplus(step + step_bias); S = exp(-s rate) S + s x inward; the result is
    S outward + skip x.

    x, step: [num_tokens, num_channels]; step_bias, skip: [num_channels] and rate (above 0): [num_channels, state_size],
    all float32; inward, outward: [num_tokens, state_size]. `state`: [num_rows, num_channels, state_size] float32, read
    and replaced in place. Result: as x.
    """
    require(
        x.shape == step.shape
        and inward.shape == outward.shape == (len(x), rate.shape[1])
        and step_bias.shape == skip.shape == x.shape[1:]
        and state.shape[1:] == rate.shape == (x.shape[1], inward.shape[1])
        and step_bias.dtype == skip.dtype == rate.dtype == state.dtype == torch.float32
        and len(x) == sum(spans.query_lens),
        lambda: (
            f"selective_scan: x {tuple(x.shape)}, step {tuple(step.shape)}, inward {tuple(inward.shape)}, "
            f"rate {tuple(rate.shape)}, state {tuple(state.shape)}"
        ),
    )
    require_same_dtype("selective_scan", x=x, step=step, inward=inward, outward=outward)
    return table.selective_scan(x, step, step_bias, rate, inward, outward, skip, state, spans)
