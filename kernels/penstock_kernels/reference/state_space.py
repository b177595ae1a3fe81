"""The scan of Mamba-2: single tokens step by step, longer spans in chunks whose inner work is done side by side."""

from typing import NamedTuple

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import Chunks, RecurrentSpans, Singles
from penstock_kernels.reference.in_order import in_order

_CHUNK = 64


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
    if spans.kept is not None:
        return in_order(
            spans,
            state,
            lambda rows, one: state_space_scan(
                x[rows], step[rows], decay, inward[rows], outward[rows], skip, state, one
            ),
        )
    copies = x.shape[1] // inward.shape[1]
    into, out_of = (part.float().repeat_interleave(copies, dim=1) for part in (inward, outward))
    steps, numbers = decay.steps(step), x.float()
    inputs = _Inputs(numbers * steps[..., None], decay.log_left(steps), into, out_of)
    output = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    singles, chunks = spans.singles(), spans.chunks(_CHUNK)
    if singles is not None:
        output[singles.rows] = _step(inputs, state, singles)
    if chunks is not None:
        _scan(inputs, state, chunks, output)
    return (output + numbers * skip[:, None]).to(x.dtype)


class _Inputs(NamedTuple):
    """Numbers of each token: what it adds, what it leaves of the state (a logarithm), where it writes and reads."""

    added: torch.Tensor
    left: torch.Tensor
    into: torch.Tensor
    out_of: torch.Tensor


def _step(inputs: _Inputs, state: torch.Tensor, singles: Singles) -> torch.Tensor:
    """One token of each span: [num_spans, heads, dim]."""
    added, left, into, out_of = (part[singles.rows] for part in inputs)
    old = state[singles.slots].masked_fill(singles.is_first[:, None, None, None], 0)
    new = old * left.exp()[..., None, None] + added.unsqueeze(-1) * into.unsqueeze(-2)
    state[singles.slots] = new
    return (new @ out_of.unsqueeze(-1)).squeeze(-1)


def _scan(inputs: _Inputs, state: torch.Tensor, chunks: Chunks, output: torch.Tensor) -> None:
    """Chunk after chunk; inside a chunk every token reads what those before it added as attention would."""
    # [num_chunks, heads, size, dim]; padding adds nothing and leaves everything.
    added, into, out_of = (chunks.of(part) for part in (inputs.added, inputs.into, inputs.out_of))
    total = chunks.of(inputs.left).cumsum(-1)
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    results = ((out_of @ into.transpose(-1, -2)) * between) @ added
    # [num_chunks, heads, dim, state_size]
    gained = (added * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2) @ into
    reading = out_of * total.exp()[..., None]
    whole = total[..., -1].exp()[..., None, None]
    now = state[chunks.slots].masked_fill(chunks.is_first[:, None, None, None], 0)
    for begin, end in chunks.turns:
        turn, before = slice(begin, end), now[: end - begin]
        results[turn] += reading[turn] @ before.transpose(-1, -2)
        now[: end - begin] = before * whole[turn] + gained[turn]
    state[chunks.slots] = now
    chunks.put(results, output)
