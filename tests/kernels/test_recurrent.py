"""Recurrent ops against their naive recurrences: lengths around chunk borders, mixed steps, and what rows keep.

Sizes that the ops in C take, in every width of vectors, and sizes that are left to the reference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from penstock_kernels import (
    Decay,
    RecurrentSpans,
    causal_conv,
    gated_delta_rule,
    gated_norm,
    reference,
    selective_scan,
    state_space_scan,
    table,
)

HEADS, KEY_HEADS, WIDTH = 4, 2, 4
# Spans of each step, of three sequences in rows 5, 0 and 3; every border of a chunk of 64 is met.
STEPS = (
    ((63, 1, 2),),
    ((64, 128, 1), (1, 1, 1)),
    ((65, 3, 129), (2, 64, 0), (1, 1, 1)),
    ((1, 1, 1), (1, 1, 1), (1, 2, 1), (130, 1, 4)),
)
ROWS = (5, 0, 3)
Arguments = tuple[torch.Tensor, ...]


class Sizes(NamedTuple):
    """The sizes of a head, and how many channels a convolution has."""

    key_dim: int
    value_dim: int
    num_channels: int


# For the reference; for vectors of 4, of 8 and of 16 numbers, alone and several beside each other.
SIZES = (
    Sizes(6, 5, 7),
    Sizes(4, 20, 12),
    Sizes(8, 40, 24),
    Sizes(16, 16, 16),
    Sizes(48, 80, 80),
    Sizes(32, 272, 144),
)
DECAY = Decay(torch.log(torch.tensor([0.1, 0.5, 1.0, 2.0])), torch.tensor([0.5, -1.0, 0.0, 30.0]), 0.001, 2.0)
SKIP = torch.tensor([1.0, -2.0, 0.0, 0.5])


def steps_of(step: torch.Tensor) -> torch.Tensor:
    return (1 + (step.double() + DECAY.step_bias).exp()).log().clamp(0.001, 2.0).float()


def delta_inputs(num_tokens: int, sizes: Sizes) -> Arguments:
    """Query, key, value, step and beta."""
    heads, keys = (num_tokens, HEADS), (num_tokens, KEY_HEADS, sizes.key_dim)
    numbers = torch.randn(*heads), torch.randn(*heads)
    return torch.randn(*keys), torch.randn(*keys), torch.randn(*heads, sizes.value_dim), *numbers


def delta(
    query: Any, key: Any, value: Any, step: Any, beta: Any, state: Any, spans: RecurrentSpans
) -> torch.Tensor:
    return gated_delta_rule(query, key, value, step, beta, DECAY, state, spans)


def delta_naive(query: Any, key: Any, value: Any, step: Any, beta: Any) -> torch.Tensor:
    state, rows = torch.zeros(HEADS, key.shape[2], value.shape[2]), []
    query, key = (F.normalize(part, dim=-1).repeat_interleave(HEADS // KEY_HEADS, 1) for part in (query, key))
    left, beta = (-steps_of(step) * DECAY.log_rate.exp()).exp(), beta.sigmoid()
    for token in range(len(value)):
        state = state * left[token][:, None, None]
        known = torch.einsum("hkv,hk->hv", state, key[token])
        change = beta[token][:, None] * (value[token] - known)
        state = state + torch.einsum("hk,hv->hkv", key[token], change)
        rows.append(torch.einsum("hkv,hk->hv", state, query[token]) * key.shape[2] ** -0.5)
    return torch.stack(rows)


# The biases of KDA: one for each row of a head's matrix.
BIASES = torch.linspace(-4, 4, 4 * 48).view(4, 48)


def by_row(size: int) -> Decay:
    return Decay(DECAY.log_rate, BIASES[:, :size].contiguous(), DECAY.min_step, DECAY.max_step)


def row_delta_inputs(num_tokens: int, sizes: Sizes) -> Arguments:
    """Like `delta_inputs`, with a step for each row of a matrix; some are so long that nothing is left."""
    query, key, value, _step, beta = delta_inputs(num_tokens, sizes)
    return query, key, value, 5 * torch.randn(num_tokens, HEADS, sizes.key_dim), beta


def row_delta(
    query: Any, key: Any, value: Any, step: Any, beta: Any, state: Any, spans: RecurrentSpans
) -> torch.Tensor:
    return gated_delta_rule(query, key, value, step, beta, by_row(key.shape[2]), state, spans)


def row_delta_naive(query: Any, key: Any, value: Any, step: Any, beta: Any) -> torch.Tensor:
    state, rows = torch.zeros(HEADS, key.shape[2], value.shape[2]), []
    query, key = (F.normalize(part, dim=-1).repeat_interleave(HEADS // KEY_HEADS, 1) for part in (query, key))
    steps = (1 + (step.double() + by_row(key.shape[2]).step_bias).exp()).log().clamp(0.001, 2.0).float()
    left, beta = (-steps * DECAY.log_rate.exp()[:, None]).exp(), beta.sigmoid()
    for token in range(len(value)):
        state = state * left[token][..., None]
        known = torch.einsum("hkv,hk->hv", state, key[token])
        state = state + torch.einsum("hk,hv->hkv", key[token], beta[token][:, None] * (value[token] - known))
        rows.append(torch.einsum("hkv,hk->hv", state, query[token]) * key.shape[2] ** -0.5)
    return torch.stack(rows)


def space_inputs(num_tokens: int, sizes: Sizes) -> Arguments:
    """x, step, what it reads by and what it writes by."""
    groups = (num_tokens, KEY_HEADS, sizes.key_dim)
    step = torch.randn(num_tokens, HEADS)
    return torch.randn(num_tokens, HEADS, sizes.value_dim), step, torch.randn(*groups), torch.randn(*groups)


def space(
    x: Any, step: Any, inward: Any, outward: Any, state: torch.Tensor, spans: RecurrentSpans
) -> torch.Tensor:
    return state_space_scan(x, step, DECAY, inward, outward, SKIP, state, spans)


def space_naive(x: Any, step: Any, inward: Any, outward: Any) -> torch.Tensor:
    state, rows = torch.zeros(HEADS, x.shape[2], inward.shape[2]), []
    into, out = (part.repeat_interleave(HEADS // KEY_HEADS, 1) for part in (inward, outward))
    steps = steps_of(step)
    for token in range(len(x)):
        state = state * (-steps[token] * DECAY.log_rate.exp()).exp()[:, None, None]
        state = state + torch.einsum("hd,hn->hdn", x[token] * steps[token][:, None], into[token])
        rows.append(torch.einsum("hdn,hn->hd", state, out[token]) + x[token] * SKIP[:, None])
    return torch.stack(rows)


def selective_inputs(num_tokens: int, sizes: Sizes) -> Arguments:
    """x, step, what it reads by and what it writes by."""
    channels, numbers = (num_tokens, sizes.num_channels), (num_tokens, sizes.key_dim)
    return torch.randn(channels), 4 * torch.randn(channels), torch.randn(numbers), torch.randn(numbers)


def of_channels(x: Any, size: int) -> Arguments:
    """The bias of steps, rates and skips."""
    count = x.shape[1]
    return torch.linspace(-9, 9, count), 0.1 + torch.rand(count, size).cumsum(1), torch.linspace(1, 2, count)


def selective(
    x: Any, step: Any, inward: Any, outward: Any, state: Any, spans: RecurrentSpans
) -> torch.Tensor:
    torch.manual_seed(1)
    bias, rate, skip = of_channels(x, inward.shape[1])
    return selective_scan(x, step, bias, rate, inward, outward, skip, state, spans)


def selective_naive(x: Any, step: Any, inward: Any, outward: Any) -> torch.Tensor:
    torch.manual_seed(1)
    bias, rate, skip = of_channels(x, inward.shape[1])
    steps = (1 + (step.double() + bias).exp()).log().float()
    state, rows = torch.zeros(rate.shape), []
    for token in range(len(x)):
        state = state * (-steps[token][:, None] * rate).exp()
        state = state + torch.outer(steps[token] * x[token], inward[token])
        rows.append(state @ outward[token] + skip * x[token])
    return torch.stack(rows)


TAPS, BIAS = torch.randn(144, WIDTH), torch.randn(144)


def conv_inputs(num_tokens: int, sizes: Sizes) -> Arguments:
    return (torch.randn(num_tokens, sizes.num_channels),)


def conv(x: Any, state: torch.Tensor, spans: RecurrentSpans) -> torch.Tensor:
    taps, bias = TAPS[: x.shape[1]].to(x.dtype), BIAS[: x.shape[1]].to(x.dtype)
    return causal_conv(x, taps, bias, state, spans, silu=True)


def conv_naive(x: Any) -> torch.Tensor:
    padded, count = F.pad(x.T, (WIDTH - 1, 0)), x.shape[1]
    return F.silu(F.conv1d(padded[None], TAPS[:count, None], BIAS[:count], groups=count))[0].T


class Kind(NamedTuple):
    """An op, its recurrence, what it is given, and what a row of its state has."""

    op: Callable[..., torch.Tensor]
    naive: Callable[..., torch.Tensor]
    make: Callable[[int, Sizes], Arguments]
    shape: Callable[[Sizes], tuple[int, ...]]

    def state(self, num_rows: int, sizes: Sizes) -> torch.Tensor:
        # Whatever was there before counts as zero for a sequence that begins.
        return torch.full((num_rows, *self.shape(sizes)), torch.nan)


KINDS = {
    "causal_conv": Kind(conv, conv_naive, conv_inputs, lambda sizes: (WIDTH - 1, sizes.num_channels)),
    "gated_delta_rule": Kind(
        delta, delta_naive, delta_inputs, lambda sizes: (HEADS, sizes.key_dim, sizes.value_dim)
    ),
    "gated_delta_rule by row": Kind(
        row_delta, row_delta_naive, row_delta_inputs, lambda sizes: (HEADS, sizes.key_dim, sizes.value_dim)
    ),
    "state_space_scan": Kind(
        space, space_naive, space_inputs, lambda sizes: (HEADS, sizes.value_dim, sizes.key_dim)
    ),
    "selective_scan": Kind(
        selective, selective_naive, selective_inputs, lambda sizes: (sizes.num_channels, sizes.key_dim)
    ),
}


def run(kind: Kind, inputs: Arguments, state: torch.Tensor, steps: tuple[int, ...]) -> torch.Tensor:
    """One sequence, in row 0, in steps of so many tokens."""
    found, done = [], 0
    for count in steps:
        part = (numbers[done : done + count] for numbers in inputs)
        spans = RecurrentSpans(torch.tensor([0]), torch.tensor([done == 0]), (count,))
        found.append(kind.op(*part, state, spans))
        done += count
    return torch.cat(found)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_recurrence(kind: str, steps: tuple[tuple[int, ...], ...], sizes: Sizes) -> None:
    torch.manual_seed(0)
    op = KINDS[kind]
    lens = [sum(step[number] for step in steps) for number in range(len(ROWS))]
    inputs = [op.make(length, sizes) for length in lens]
    state, done = op.state(6, sizes), [0, 0, 0]
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
        together = op.op(*(torch.cat(column) for column in zip(*parts, strict=True)), state, spans)
        shares = torch.split(together, [step[number] for number in here])
        for number, share in zip(here, shares, strict=True):
            found[number].append(share)
            done[number] += step[number]
    for rows, given in zip(found, inputs, strict=True):
        torch.testing.assert_close(torch.cat(rows), op.naive(*given), rtol=1e-4, atol=2e-5)
    assert state[[1, 2, 4]].isnan().all(), "rows of other slots are left alone"


@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_that_is_not_finite_spoils_no_other(kind: str, sizes: Sizes) -> None:
    torch.manual_seed(0)
    op = KINDS[kind]
    inputs = op.make(70 + 3, sizes)
    inputs[0][:70] = torch.nan
    spans = RecurrentSpans(torch.tensor([0, 1]), torch.tensor([True, True]), (70, 3))
    found = op.op(*inputs, op.state(2, sizes), spans)
    assert found[:70].isnan().any()
    torch.testing.assert_close(found[70:], op.naive(*(part[70:] for part in inputs)), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_token_has_the_same_bits_in_any_step(kind: str, sizes: Sizes, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    op = KINDS[kind]
    inputs = tuple(part.to(dtype) for part in op.make(150, sizes))
    state = op.state(4, sizes)
    state = state.to(dtype) if kind == "causal_conv" else state
    whole, whole_state = run(op, inputs, state, (150,)), state[0].clone()
    for steps in ((1,) * 150, (63, 1, 86), (33, 32, 31, 54)):
        assert torch.equal(run(op, inputs, state, steps), whole)
        assert torch.equal(state[0], whole_state)
    beside = tuple(torch.cat((part[:7], part, part[:1])) for part in inputs)
    spans = RecurrentSpans(torch.tensor([3, 1, 2]), torch.ones(3, dtype=torch.bool), (7, 150, 1))
    assert torch.equal(op.op(*beside, state, spans)[7:157], whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_states_behind_spans_of_one_sequence_are_kept(kind: str, sizes: Sizes, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    op, num_rows = KINDS[kind], 9
    # There are three sequences: a token and three behind it, a prompt, and a first token with one behind it.
    slots, lens, kept = (2, 2, 2, 2, 5, 7, 7), (1, 1, 1, 1, 70, 1, 1), (0, 1, -1, 8, -1, 3, -1)
    inputs = tuple(part.to(dtype) for part in op.make(sum(lens), sizes))
    state = torch.randn(num_rows, *op.shape(sizes)).to(dtype if kind == "causal_conv" else torch.float32)
    is_first = torch.tensor([False, False, False, False, True, True, False])
    expected, found, begin = state.clone(), [], 0
    for number, (slot, length, place) in enumerate(zip(slots, lens, kept, strict=True)):
        part = (numbers[begin : begin + length] for numbers in inputs)
        spans = RecurrentSpans(torch.tensor([slot]), is_first[number : number + 1], (length,))
        found.append(op.op(*part, expected, spans))
        if place >= 0:
            expected[place] = expected[slot]
        begin += length
    spans = RecurrentSpans(torch.tensor(slots), is_first, lens, torch.tensor(kept))
    assert torch.equal(op.op(*inputs, state, spans), torch.cat(found))
    assert torch.equal(state, expected)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("steps", [(150,), (1, 1, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_width_of_vectors_equals_the_reference(
    kind: str, dtype: torch.dtype, steps: tuple[int, ...], lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    op, sizes, row = KINDS[kind], Sizes(32, 272, 144), vars(table)[kind.split()[0]]
    inputs = tuple(part.to(dtype) for part in op.make(sum(steps), sizes))
    state = op.state(1, sizes)
    state = state.to(dtype) if kind == "causal_conv" else state
    compiled = row.native
    monkeypatch.setattr(row, "native", lambda *args: compiled(*args, max_lanes=lanes))
    found = run(op, inputs, state, steps)
    monkeypatch.setattr(row, "native", None)
    expected = run(op, inputs, state.clone(), steps)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("lanes", [0, 4, 8, 16])
@pytest.mark.parametrize("has_silu", [False, True])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 3, 48), (2, 1, 12), (1, 4, 7)])
def test_gated_norms_equal_the_reference(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    gate_first: bool,
    has_silu: bool,
    lanes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    x, size = torch.randn(shape).to(dtype), shape[1] * shape[2]
    gate = torch.randn(shape[0], 3 * size).to(dtype)[:, size : 2 * size]
    compiled = table.gated_norm.native
    assert compiled is not None
    monkeypatch.setattr(table.gated_norm, "native", lambda *args: compiled(*args, max_lanes=lanes))
    for weight in (torch.randn(shape[2]), torch.randn(shape[1:])):
        arguments = (x, gate, weight, 1e-5, gate_first, has_silu)
        found = gated_norm(*arguments)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(found, reference.gated_norm(*arguments), rtol=tolerance, atol=tolerance)
        assert torch.equal(gated_norm(x[1:2], gate[1:2], *arguments[2:]), found[1:2])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_that_is_not_there_is_refused(kind: str) -> None:
    op, sizes = KINDS[kind], SIZES[3]
    for slot, kept in ((2, None), (1, torch.tensor([2]))):
        spans = RecurrentSpans(torch.tensor([slot]), torch.tensor([True]), (3,), kept)
        with pytest.raises(IndexError, match="no row of the state"):
            op.op(*op.make(3, sizes), op.state(2, sizes), spans)
