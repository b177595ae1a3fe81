"""Recurrent ops against their naive recurrences: lengths around chunk borders, mixed steps, and what rows keep."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from penstock_kernels import RecurrentSpans, causal_conv, gated_delta_rule, state_space_scan

HEADS, KEY_HEADS, KEY_DIM, VALUE_DIM, WIDTH = 4, 2, 6, 5, 4
# Spans of each step, of three sequences in rows 5, 0 and 3; every border of a chunk of 64 is met.
STEPS = (
    ((63, 1, 2),),
    ((64, 128, 1), (1, 1, 1)),
    ((65, 3, 129), (2, 64, 0), (1, 1, 1)),
    ((1, 1, 1), (1, 1, 1), (1, 2, 1), (130, 1, 4)),
)
ROWS = (5, 0, 3)
Arguments = tuple[torch.Tensor, ...]


def delta_inputs(num_tokens: int) -> Arguments:
    """Query, key, value, decay and beta."""
    heads, keys = (num_tokens, HEADS), (num_tokens, KEY_HEADS, KEY_DIM)
    decay, beta = -F.softplus(torch.randn(*heads)), torch.rand(*heads)
    return torch.randn(*keys), torch.randn(*keys), torch.randn(*heads, VALUE_DIM), decay, beta


def delta_naive(query: Any, key: Any, value: Any, decay: Any, beta: Any) -> torch.Tensor:
    state, rows = torch.zeros(HEADS, KEY_DIM, VALUE_DIM), []
    query, key = (F.normalize(part, dim=-1).repeat_interleave(HEADS // KEY_HEADS, 1) for part in (query, key))
    for token in range(len(value)):
        state = state * decay[token].exp()[:, None, None]
        known = torch.einsum("hkv,hk->hv", state, key[token])
        change = beta[token][:, None] * (value[token] - known)
        state = state + torch.einsum("hk,hv->hkv", key[token], change)
        rows.append(torch.einsum("hkv,hk->hv", state, query[token]) * KEY_DIM**-0.5)
    return torch.stack(rows)


def space_inputs(num_tokens: int) -> Arguments:
    """x, step, what it reads by and what it writes by."""
    groups = (num_tokens, KEY_HEADS, KEY_DIM)
    step = F.softplus(torch.randn(num_tokens, HEADS))
    return torch.randn(num_tokens, HEADS, VALUE_DIM), step, torch.randn(*groups), torch.randn(*groups)


DECAY = -torch.tensor([0.1, 0.5, 1.0, 2.0])


def space(
    x: Any, step: Any, inward: Any, outward: Any, state: torch.Tensor, spans: RecurrentSpans
) -> torch.Tensor:
    return state_space_scan(x, step, DECAY, inward, outward, state, spans)


def space_naive(x: Any, step: Any, inward: Any, outward: Any) -> torch.Tensor:
    state, rows = torch.zeros(HEADS, VALUE_DIM, KEY_DIM), []
    into, out = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (inward, outward))
    for token in range(len(x)):
        state = state * (step[token] * DECAY).exp()[:, None, None]
        state = state + torch.einsum("hd,hn->hdn", x[token] * step[token][:, None], into[token])
        rows.append(torch.einsum("hdn,hn->hd", state, out[token]))
    return torch.stack(rows)


TAPS, BIAS = torch.randn(7, WIDTH), torch.randn(7)


def conv(x: Any, state: torch.Tensor, spans: RecurrentSpans) -> torch.Tensor:
    return causal_conv(x, TAPS, BIAS, state, spans, silu=True)


def conv_naive(x: Any) -> torch.Tensor:
    padded = F.pad(x.T, (WIDTH - 1, 0))
    return F.silu(F.conv1d(padded[None], TAPS[:, None], BIAS, groups=7))[0].T


KINDS: dict[
    str, tuple[Callable[..., Any], Callable[..., Any], Callable[[int], Arguments], tuple[int, ...]]
] = {
    "causal_conv": (conv, conv_naive, lambda count: (torch.randn(count, 7),), (WIDTH - 1, 7)),
    "gated_delta_rule": (gated_delta_rule, delta_naive, delta_inputs, (HEADS, KEY_DIM, VALUE_DIM)),
    "state_space_scan": (space, space_naive, space_inputs, (HEADS, VALUE_DIM, KEY_DIM)),
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_recurrence(kind: str, steps: tuple[tuple[int, ...], ...]) -> None:
    torch.manual_seed(0)
    op, naive, make, shape = KINDS[kind]
    lens = [sum(step[number] for step in steps) for number in range(len(ROWS))]
    inputs = [make(length) for length in lens]
    # Whatever was there before counts as zero for a sequence that begins.
    state, done = torch.full((6, *shape), torch.nan), [0, 0, 0]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in steps:
        here = [number for number, count in enumerate(step) if count]
        parts = [
            [part[done[number] : done[number] + step[number]] for part in inputs[number]] for number in here
        ]
        spans = RecurrentSpans(
            torch.tensor([ROWS[number] for number in here]),
            torch.tensor([done[number] == 0 for number in here]),
            [step[number] for number in here],
        )
        together = op(*(torch.cat(column) for column in zip(*parts, strict=True)), state, spans)
        for number, rows in zip(here, together.split([step[number] for number in here]), strict=True):
            found[number].append(rows)
            done[number] += step[number]
    for rows, given in zip(found, inputs, strict=True):
        torch.testing.assert_close(torch.cat(rows), naive(*given), rtol=1e-4, atol=1e-5)
    assert state[[1, 2, 4]].isnan().all(), "rows of other slots are left alone"


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_is_not_finite_spoils_no_other(kind: str) -> None:
    torch.manual_seed(0)
    op, naive, make, shape = KINDS[kind]
    inputs = make(70 + 3)
    inputs[0][:70] = torch.nan
    spans = RecurrentSpans(torch.tensor([0, 1]), torch.tensor([True, True]), (70, 3))
    found = op(*inputs, torch.zeros(2, *shape), spans)
    assert found[:70].isnan().any()
    torch.testing.assert_close(found[70:], naive(*(part[70:] for part in inputs)), rtol=1e-4, atol=1e-5)
