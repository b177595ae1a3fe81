"""The scan of Mamba-1, token after token; a turn has the next token of every span."""

from typing import NamedTuple

import torch
import torch.nn.functional as F

from penstock_kernels.base.recurrent_spans import RecurrentSpans
from penstock_kernels.reference.in_order import in_order


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
    if spans.kept is not None:
        of_channels = step_bias, rate
        return in_order(
            spans,
            state,
            lambda rows, one: selective_scan(
                x[rows], step[rows], *of_channels, inward[rows], outward[rows], skip, state, one
            ),
        )
    steps, numbers = F.softplus(step.float() + step_bias), x.float()
    inputs = _Inputs(steps, numbers * steps, rate, inward.float(), outward.float())
    output = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    singles, chunks = spans.singles(), spans.chunks(1)
    if singles is not None:
        now = state[singles.slots].masked_fill(singles.is_first[:, None, None], 0)
        state[singles.slots], output[singles.rows] = inputs.advance(now, singles.rows)
    if chunks is not None:
        now = state[chunks.slots].masked_fill(chunks.is_first[:, None, None], 0)
        for begin, end in chunks.turns:
            rows, active = chunks.rows[begin:end, 0], slice(0, end - begin)
            now[active], output[rows] = inputs.advance(now[active], rows)
        state[chunks.slots] = now
    return (output + numbers * skip).to(x.dtype)


class _Inputs(NamedTuple):
    """The inputs of the scan, all in float32."""

    steps: torch.Tensor
    added: torch.Tensor
    rate: torch.Tensor
    into: torch.Tensor
    out_of: torch.Tensor

    def advance(self, before: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The states behind these tokens, [num_rows, channels, state_size], and what is read of them."""
        left = (self.steps[rows][..., None] * -self.rate).exp()
        now = before * left + self.added[rows][..., None] * self.into[rows][:, None]
        return now, (now @ self.out_of[rows][..., None]).squeeze(-1)
