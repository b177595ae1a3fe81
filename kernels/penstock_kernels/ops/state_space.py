"""The state space of Mamba-2: a matrix for each head, of which every token leaves a part and to which it adds."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import RecurrentSpans


def state_space_scan(
    x: torch.Tensor,
    step: torch.Tensor,
    decay: Decay,
    inward: torch.Tensor,
    outward: torch.Tensor,
    skip: torch.Tensor,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    """For each token and head: S = left S + (step x) inward^T; the result is S outward + skip x.

    x: [num_tokens, num_heads, dim]; step: [num_tokens, num_heads], of which `decay` makes the step and what is left;
    inward, outward: [num_tokens, num_groups, state_size], each group for as many heads in a row; skip: [num_heads]
    float32. `state`: [num_rows, num_heads, dim, state_size] float32, read and replaced in place. Result: as x.
    """
    num_heads, dim = x.shape[1:]
    require(
        inward.shape == outward.shape
        and num_heads % inward.shape[1] == 0
        and skip.shape == (num_heads,)
        and state.shape[1:] == (num_heads, dim, inward.shape[2])
        and skip.dtype == state.dtype == torch.float32
        and len(x) == sum(spans.query_lens),
        lambda: (
            f"state_space_scan: x {tuple(x.shape)}, inward {tuple(inward.shape)}, state {tuple(state.shape)}"
        ),
    )
    decay.check("state_space_scan", step, len(x), num_heads)
    require_same_dtype("state_space_scan", x=x, step=step, inward=inward, outward=outward)
    return table.state_space_scan(x, step, decay, inward, outward, skip, state, spans)
