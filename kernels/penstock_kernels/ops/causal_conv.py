"""A short convolution over the tokens of each sequence, whose last inputs are kept as its state."""

import torch

from penstock_kernels import table
from penstock_kernels.base.checks import require, require_same_dtype
from penstock_kernels.base.recurrent_spans import RecurrentSpans


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool = False,
) -> torch.Tensor:
    """Each channel is multiplied with its own `weight` [channels, width], and the result, with `silu`, activated.

    x: [num_tokens, channels], spans after each other; `state`: [num_rows, width - 1, channels], the last inputs of each
    sequence, oldest first, which are read and replaced in place. Result: as x.
    """
    require(
        x.dim() == 2
        and weight.shape[0] == x.shape[1]
        and state.shape[1:] == (weight.shape[1] - 1, x.shape[1])
        and (bias is None or bias.shape == x.shape[1:])
        and len(x) == sum(spans.query_lens),
        lambda: f"causal_conv: x {tuple(x.shape)}, weight {tuple(weight.shape)}, state {tuple(state.shape)}",
    )
    require_same_dtype("causal_conv", x=x, weight=weight, state=state)
    return table.causal_conv(x, weight, bias, state, spans, silu)
