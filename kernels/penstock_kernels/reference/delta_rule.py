"""The gated delta rule: single tokens step by step, longer spans in chunks whose inner work is done side by side."""

from typing import NamedTuple

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import Chunks, RecurrentSpans, Singles

_CHUNK = 64
_EPS = 1e-6


def gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    step: torch.Tensor,
    beta: torch.Tensor,
    decay: Decay,
    state: torch.Tensor,
    spans: RecurrentSpans,
) -> torch.Tensor:
    copies = value.shape[1] // key.shape[1]
    queries, keys = (_normed(part).repeat_interleave(copies, dim=1) for part in (query, key))
    queries *= query.shape[2] ** -0.5
    inputs = _Inputs(queries, keys, value.float(), decay.log_left(decay.steps(step)), beta.float().sigmoid())
    output = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    singles, chunks = spans.singles(), spans.chunks(_CHUNK)
    if singles is not None:
        output[singles.rows] = _step(inputs, state, singles)
    if chunks is not None:
        _scan(inputs, state, chunks, output)
    return output.to(value.dtype)


class _Inputs(NamedTuple):
    """All in float32; queries and keys normalised, as many as values."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    decay: torch.Tensor
    beta: torch.Tensor


def _normed(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)


def _step(inputs: _Inputs, state: torch.Tensor, singles: Singles) -> torch.Tensor:
    """One token of each span: [num_spans, heads, dim]."""
    query, key, value, decay, beta = (part[singles.rows] for part in inputs)
    old = state[singles.slots].masked_fill(singles.is_first[:, None, None, None], 0)
    old *= decay.exp()[..., None, None]
    known = (key.unsqueeze(-2) @ old).squeeze(-2)
    change = (value - known) * beta[..., None]
    new = old + key.unsqueeze(-1) * change.unsqueeze(-2)
    state[singles.slots] = new
    return (query.unsqueeze(-2) @ new).squeeze(-2)


def _scan(inputs: _Inputs, state: torch.Tensor, chunks: Chunks, output: torch.Tensor) -> None:
    """Chunk after chunk. What its tokens change for each other is a triangular system, whatever came before."""
    # [num_chunks, heads, size, dim]; padding has no weight and does not decay.
    query, key, value = (chunks.of(part) for part in inputs[:3])
    total, beta = chunks.of(inputs.decay).cumsum(-1), chunks.of(inputs.beta)[..., None]
    size = total.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    weighted, turned = key * beta, key.transpose(-1, -2)
    system = (weighted @ turned) * between
    right = torch.cat((value * beta, weighted * total.exp()[..., None]), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, of_state = solved.split((value.shape[-1], key.shape[-1]), dim=-1)
    scores = (query @ turned) * between
    query = query * total.exp()[..., None]
    key = key * (total[..., -1:] - total).exp()[..., None]
    whole = total[..., -1].exp()[..., None, None]
    now = state[chunks.slots].masked_fill(chunks.is_first[:, None, None, None], 0)
    results = torch.empty_like(own)
    for begin, end in chunks.turns:
        turn, before = slice(begin, end), now[: end - begin]
        change = own[turn] - of_state[turn] @ before
        results[turn] = query[turn] @ before + scores[turn] @ change
        now[: end - begin] = before * whole[turn] + key[turn].transpose(-1, -2) @ change
    state[chunks.slots] = now
    chunks.put(results, output)
