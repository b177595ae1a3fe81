"""The gated delta rule: single tokens step by step, longer spans in chunks whose inner work is done side by side.

What is left of a matrix is a number, or a number for each of its rows: here always the latter, alike or not.
"""

from typing import NamedTuple

import torch

from penstock_kernels.base.decay import Decay
from penstock_kernels.base.recurrent_spans import Chunks, RecurrentSpans, Singles
from penstock_kernels.reference.in_order import in_order

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
    if spans.kept is not None:
        return in_order(
            spans,
            state,
            lambda rows, one: gated_delta_rule(
                query[rows], key[rows], value[rows], step[rows], beta[rows], decay, state, one
            ),
        )
    copies = value.shape[1] // key.shape[1]
    queries, keys = (_normed(part).repeat_interleave(copies, dim=1) for part in (query, key))
    queries *= query.shape[2] ** -0.5
    left = decay.log_left(decay.steps(step))
    left = left if left.dim() == 3 else left[..., None]
    inputs = _Inputs(queries, keys, value.float(), left, beta.float().sigmoid())
    output = torch.empty(value.shape, dtype=torch.float32, device=value.device)
    singles, chunks = spans.singles(), spans.chunks(_CHUNK)
    if singles is not None:
        output[singles.rows] = _step(inputs, state, singles)
    if chunks is not None:
        _scan(inputs, state, chunks, output)
    return output.to(value.dtype)


class _Inputs(NamedTuple):
    """The inputs of the rule in float32: queries and keys are normalised, and as many as values; `decay` has one number
    for all rows, or one for each."""

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
    old *= decay.exp()[..., None]
    known = (key.unsqueeze(-2) @ old).squeeze(-2)
    change = (value - known) * beta[..., None]
    new = old + key.unsqueeze(-1) * change.unsqueeze(-2)
    state[singles.slots] = new
    return (query.unsqueeze(-2) @ new).squeeze(-2)


def _scan(inputs: _Inputs, state: torch.Tensor, chunks: Chunks, output: torch.Tensor) -> None:
    """Chunk after chunk. What its tokens change for each other is a triangular system, whatever came before."""
    # [num_chunks, heads, size, dim]; padding has no weight and does not decay.
    query, key, value = (chunks.of(part) for part in inputs[:3])
    total, beta = chunks.of(inputs.decay).cumsum(-2), chunks.of(inputs.beta)[..., None]
    weighted = key * beta
    products = _of_alike if total.shape[-1] == 1 else _of_rows
    system, scores = products(weighted, key, total), products(query, key, total)
    right = torch.cat((value * beta, weighted * total.exp()), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    own, of_state = solved.split((value.shape[-1], key.shape[-1]), dim=-1)
    query = query * total.exp()
    key = key * (total[..., -1:, :] - total).exp()
    whole = total[..., -1, :].exp()[..., None]
    now = state[chunks.slots].masked_fill(chunks.is_first[:, None, None, None], 0)
    results = torch.empty_like(own)
    for begin, end in chunks.turns:
        turn, before = slice(begin, end), now[: end - begin]
        change = own[turn] - of_state[turn] @ before
        results[turn] = query[turn] @ before + scores[turn] @ change
        now[: end - begin] = before * whole[turn] + key[turn].transpose(-1, -2) @ change
    state[chunks.slots] = now
    chunks.put(results, output)


def _of_alike(left: torch.Tensor, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Products of each token with those up to itself, times what is left of them: [num_chunks, heads, size, size]."""
    size = total.shape[-2]
    later = torch.ones(size, size, dtype=torch.bool, device=total.device).triu(1)
    between = (total - total.transpose(-1, -2)).masked_fill(later, float("-inf")).exp()
    return (left @ key.transpose(-1, -2)) * between


def _of_rows(left: torch.Tensor, key: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """`_of_alike` where rows forget by themselves: token after token, because no power of what is left may overflow."""
    size = total.shape[-2]
    found = left.new_zeros(*left.shape[:-1], size)
    for token in range(size):
        since = (total[..., token:, :] - total[..., token : token + 1, :]).exp()
        found[..., token:, token] = (left[..., token:, :] * since * key[..., token : token + 1, :]).sum(-1)
    return found
