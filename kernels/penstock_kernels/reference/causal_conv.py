"""A short convolution over the tokens of each sequence: every channel by itself, its last inputs are its state."""

import torch
import torch.nn.functional as F

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.reference.in_order import in_order


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    spans: RecurrentSpans,
    silu: bool,
) -> torch.Tensor:
    if spans.kept is not None:
        return in_order(spans, state, lambda rows, one: causal_conv(x[rows], weight, bias, state, one, silu))
    length = state.shape[1]
    # [num_spans, length, channels]
    before = state[spans.slots].masked_fill(spans.is_first[:, None, None], 0)
    # [width, channels]
    taps = weight.T.float()
    if spans.are_single:
        seen = torch.cat((before, x[:, None]), dim=1)
        state[spans.slots] = seen[:, 1:]
        output = (seen.float() * taps).sum(1)
    else:
        tail = spans.tail(length)
        rows = x.new_empty(tail.num_rows, x.shape[1])
        rows[tail.remembered.flatten()] = before.flatten(0, 1)
        rows[tail.tokens] = x
        state[spans.slots] = rows[tail.last]
        output = x.float() * taps[length]
        for tap in range(length):
            output += rows[tail.tokens - (length - tap)].float() * taps[tap]
    if bias is not None:
        output += bias.float()
    return (F.silu(output) if silu else output).to(x.dtype)
