"""Ops of recurrent layers, one token of each sequence or more: results, and the states that are replaced in place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from closeness import DTYPES, TOLERANCE, assert_close
from penstock_kernels import (
    Decay,
    RecurrentSpans,
    causal_conv,
    gated_delta_rule,
    gated_norm,
    reference,
    selective_scan,
    state_space_scan,
)

NUM_ROWS = 7
# Whether each span begins its sequence.
SPANS = [[], [True], [False, True, False, False, True]]


def spans_of(is_first: list[bool], device: torch.device, lens: tuple[int, ...] = ()) -> RecurrentSpans:
    """Spans of one token each, or of these lengths."""
    slots = torch.randperm(NUM_ROWS, device=device)[: len(is_first)]
    return RecurrentSpans(
        slots, torch.tensor(is_first, dtype=torch.bool, device=device), lens or (1,) * len(is_first)
    )


def rows_of(spans: RecurrentSpans, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A part of a larger projection."""
    count = sum(spans.query_lens)
    wide = torch.randn(count, 3 * shape[0], *shape[1:], device=spans.slots.device).to(dtype)
    return wide[:, shape[0] : 2 * shape[0]]


def check(
    op: Callable[..., torch.Tensor],
    twin: Callable[..., torch.Tensor],
    given: list[Any],
    spans: RecurrentSpans,
    state: torch.Tensor,
    options: tuple[Any, ...] = (),
) -> None:
    """The state in a row counts as zero for a sequence that begins; rows of other slots stay."""
    state[spans.slots[spans.is_first]] = torch.nan
    expected_state = state.clone()
    found = op(*given, state, spans, *options)
    expected = twin(*given, expected_state, spans, *options)
    # Both compute in float32; what is rounded to 16 bits in between may differ by its last place.
    slack = 20 if found.dtype == torch.float32 else 1
    assert_close(found, expected, slack=slack)
    tolerance = TOLERANCE[state.dtype] * 20
    torch.testing.assert_close(state, expected_state, rtol=tolerance, atol=tolerance, equal_nan=True)


def decay_of(device: torch.device, *shape: int) -> Decay:
    bias = torch.linspace(-9, 9, shape[0] * (shape[1] if len(shape) > 1 else 1), device=device).view(shape)
    return Decay(torch.linspace(-2, 1, shape[0], device=device), bias, 0.001, 2.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_first", SPANS, ids=len)
@pytest.mark.parametrize(("channels", "width", "has_bias"), [(300, 4, True), (7, 2, False), (256, 3, False)])
def test_causal_conv(
    channels: int, width: int, has_bias: bool, is_first: list[bool], dtype: torch.dtype, device: torch.device
) -> None:
    spans = spans_of(is_first, device)
    weight = torch.randn(channels, width, device=device).to(dtype)
    bias = torch.randn(channels, device=device).to(dtype) if has_bias else None
    state = torch.randn(NUM_ROWS, width - 1, channels, device=device).to(dtype)
    x = rows_of(spans, dtype, channels)
    check(causal_conv, reference.causal_conv, [x, weight, bias], spans, state, (has_bias,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_first", SPANS, ids=len)
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(
    ("heads", "key_heads", "key_dim", "value_dim"), [(4, 2, 128, 80), (3, 3, 10, 6), (2, 1, 64, 64)]
)
def test_gated_delta_rule(
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    by_row: bool,
    is_first: list[bool],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    spans = spans_of(is_first, device)
    query, key = (rows_of(spans, dtype, key_heads, key_dim) for _ in range(2))
    of_head = (heads, key_dim) if by_row else (heads,)
    rest = [rows_of(spans, dtype, heads, value_dim), rows_of(spans, dtype, *of_head)]
    state = torch.randn(NUM_ROWS, heads, key_dim, value_dim, device=device)
    given = [query, key, *rest, rows_of(spans, dtype, heads), decay_of(device, *of_head)]
    check(gated_delta_rule, reference.gated_delta_rule, given, spans, state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_first", SPANS, ids=len)
@pytest.mark.parametrize(("heads", "groups", "dim", "size"), [(4, 2, 80, 128), (3, 3, 6, 10), (2, 1, 64, 64)])
def test_state_space_scan(
    heads: int,
    groups: int,
    dim: int,
    size: int,
    is_first: list[bool],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    spans = spans_of(is_first, device)
    inward, outward = (rows_of(spans, dtype, groups, size) for _ in range(2))
    numbers = [
        rows_of(spans, dtype, heads, dim),
        rows_of(spans, dtype, heads),
        decay_of(device, heads),
        inward,
    ]
    state = torch.randn(NUM_ROWS, heads, dim, size, device=device)
    given = [*numbers, outward, torch.randn(heads, device=device)]
    check(state_space_scan, reference.state_space_scan, given, spans, state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lens", [(), (1,), (1, 1, 1, 1, 1), (3, 1, 9, 2, 1)], ids=len)
@pytest.mark.parametrize(("channels", "size"), [(300, 16), (7, 6)])
def test_selective_scan(
    channels: int, size: int, lens: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    spans = spans_of([False, True, False, False, True][: len(lens)], device, lens)
    inward, outward = (rows_of(spans, dtype, size) for _ in range(2))
    vectors = [
        torch.linspace(-9, 9, channels, device=device),
        torch.rand(channels, size, device=device) + 0.1,
    ]
    given = [rows_of(spans, dtype, channels), rows_of(spans, dtype, channels), *vectors, inward, outward]
    state = torch.randn(NUM_ROWS, channels, size, device=device)
    check(
        selective_scan,
        reference.selective_scan,
        [*given, torch.randn(channels, device=device)],
        spans,
        state,
    )


def drafted(device: torch.device) -> RecurrentSpans:
    """A token alone, one with three drafted behind it, and the first of a sequence with one."""
    slots, kept = [4, 2, 2, 2, 2, 6, 6], [-1, 0, 5, 1, -1, 3, -1]
    is_first = torch.tensor([False, False, False, False, False, True, False], device=device)
    rows = torch.tensor([slots, kept], device=device)
    return RecurrentSpans(rows[0], is_first, (1,) * len(slots), rows[1])


@pytest.mark.parametrize("by_row", [False, True])
def test_gated_delta_rule_keeps_states_behind_tokens(by_row: bool, device: torch.device) -> None:
    spans, (heads, key_dim, value_dim) = drafted(device), (4, 10, 40)
    query, key = (rows_of(spans, torch.float32, 2, key_dim) for _ in range(2))
    of_head = (heads, key_dim) if by_row else (heads,)
    rest = [rows_of(spans, torch.float32, heads, value_dim), rows_of(spans, torch.float32, *of_head)]
    given = [query, key, *rest, rows_of(spans, torch.float32, heads), decay_of(device, *of_head)]
    state = torch.randn(NUM_ROWS, heads, key_dim, value_dim, device=device)
    check(gated_delta_rule, reference.gated_delta_rule, given, spans, state)


def test_state_space_scan_keeps_states_behind_tokens(device: torch.device) -> None:
    spans, (heads, groups, dim, size) = drafted(device), (4, 2, 80, 10)
    inward, outward = (rows_of(spans, torch.float32, groups, size) for _ in range(2))
    x, step = rows_of(spans, torch.float32, heads, dim), rows_of(spans, torch.float32, heads)
    given = [x, step, decay_of(device, heads), inward, outward, torch.randn(heads, device=device)]
    state = torch.randn(NUM_ROWS, heads, dim, size, device=device)
    check(state_space_scan, reference.state_space_scan, given, spans, state)


def test_selective_scan_keeps_states_behind_tokens(device: torch.device) -> None:
    spans, (channels, size) = drafted(device), (300, 6)
    inward, outward = (rows_of(spans, torch.float32, size) for _ in range(2))
    vectors = [torch.linspace(-9, 9, channels, device=device), torch.rand(channels, size, device=device)]
    given = [*(rows_of(spans, torch.float32, channels) for _ in range(2)), *vectors, inward, outward]
    state = torch.randn(NUM_ROWS, channels, size, device=device)
    given.append(torch.randn(channels, device=device))
    check(selective_scan, reference.selective_scan, given, spans, state)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_causal_conv_keeps_inputs_behind_tokens(width: int, device: torch.device) -> None:
    spans, channels = drafted(device), 300
    weight, bias = torch.randn(channels, width, device=device), torch.randn(channels, device=device)
    state = torch.randn(NUM_ROWS, width - 1, channels, device=device)
    given = [rows_of(spans, torch.float32, channels), weight, bias]
    check(causal_conv, reference.causal_conv, given, spans, state, (True,))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("has_silu", [False, True])
@pytest.mark.parametrize("shape", [(0, 2, 8), (5, 3, 48), (1, 4, 7), (2, 1, 1030)])
def test_gated_norm(
    shape: tuple[int, int, int], has_silu: bool, gate_first: bool, dtype: torch.dtype, device: torch.device
) -> None:
    size = shape[1] * shape[2]
    x = torch.randn(shape, device=device).to(dtype)
    gate = torch.randn(shape[0], 3 * size, device=device).to(dtype)[:, size : 2 * size]
    for weight in (torch.randn(shape[2], device=device), torch.randn(shape[1:], device=device)):
        given = (x, gate, weight, 1e-5, gate_first, has_silu)
        assert_close(gated_norm(*given), reference.gated_norm(*given))


def in_turn(twin: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The recurrence itself: one token of each span after the other."""

    def compute(*arguments: Any) -> torch.Tensor:
        *given, state, spans = arguments
        starts, found = (
            spans.starts(),
            torch.empty_like(given[0 if twin is reference.state_space_scan else 2]),
        )
        for turn in range(max(spans.query_lens)):
            here = torch.tensor([turn < length for length in spans.query_lens], device=starts.device)
            rows = starts[:-1][here] + turn
            parts = [
                part[rows] if torch.is_tensor(part) and len(part) == len(found) else part for part in given
            ]
            now = RecurrentSpans(spans.slots[here], spans.is_first[here] & (turn == 0), (1,) * len(rows))
            found[rows] = twin(*parts, state, now)
        return found

    return compute


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("lens", "channels", "width", "has_bias"),
    [
        ((65, 1, 0, 3), 100, 4, True),
        ((130, 2, 64, 1, 63), 7, 2, False),
        ((2, 1, 3, 127), 64, 5, True),
        ((66,), 10, 4, False),
    ],
)
def test_causal_conv_of_longer_spans(
    lens: tuple[int, ...],
    channels: int,
    width: int,
    has_bias: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Also spans that are shorter than what a state remembers, beside others whose states are not known."""
    weight = torch.randn(channels, width, device=device).to(dtype)
    bias = torch.randn(channels, device=device).to(dtype) if has_bias else None
    for is_first in ([True, False, False, True, False], [False, True, False, False, True]):
        spans = spans_of(is_first[: len(lens)], device, lens)
        state = torch.randn(NUM_ROWS, width - 1, channels, device=device).to(dtype)
        x = rows_of(spans, dtype, channels)
        check(causal_conv, reference.causal_conv, [x, weight, bias], spans, state, (has_bias,))


def test_spans_of_padding_have_one_slot(
    device: torch.device, exempt_from_races: Callable[[torch.Tensor], None]
) -> None:
    """Nobody reads its state; the others are as they would be without."""
    slots, is_first = torch.tensor([3, 0, 0], device=device), torch.tensor([False, True, True], device=device)
    spans, channels = RecurrentSpans(slots, is_first, (70, 3, 2)), 40
    weight, x = torch.randn(channels, 4, device=device), rows_of(spans, torch.float32, channels)
    state = torch.randn(4, 3, channels, device=device)
    expected_state = state.clone()
    exempt_from_races(state[0])
    found = causal_conv(x, weight, None, state, spans)
    assert_close(found, reference.causal_conv(x, weight, None, expected_state, spans, False))
    assert torch.equal(state[1:], expected_state[1:])


# Around the borders of blocks of 16 and of chunks of 64, beside single tokens and spans without any.
LONGER = [(65, 1, 0, 3), (130, 15, 64, 1, 17), (63, 16)]


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize(
    ("lens", "heads", "key_heads", "key_dim", "value_dim"),
    [(LONGER[0], 2, 1, 128, 48), (LONGER[1], 2, 2, 10, 6), (LONGER[2], 2, 1, 64, 64)],
)
def test_gated_delta_rule_of_longer_spans(
    lens: tuple[int, ...],
    heads: int,
    key_heads: int,
    key_dim: int,
    value_dim: int,
    by_row: bool,
    device: torch.device,
) -> None:
    spans = spans_of([True, False, False, True, False][: len(lens)], device, lens)
    query, key = (rows_of(spans, torch.bfloat16, key_heads, key_dim) for _ in range(2))
    value = rows_of(spans, torch.bfloat16, heads, value_dim)
    of_head = (heads, key_dim) if by_row else (heads,)
    numbers = [rows_of(spans, torch.bfloat16, *of_head), rows_of(spans, torch.bfloat16, heads)]
    state = torch.randn(NUM_ROWS, heads, key_dim, value_dim, device=device)
    given = [query, key, value, *numbers, decay_of(device, *of_head)]
    check(gated_delta_rule, in_turn(reference.gated_delta_rule), given, spans, state)


@pytest.mark.parametrize("steps", [(-9.0, 50.0), (-20.0, -9.0), (50.0, 3000.0), (-20.0, float("inf"))])
def test_rows_that_forget_much_or_little_keep_their_digits(
    steps: tuple[float, float], device: torch.device
) -> None:
    """e^-50 is left of some after each token, nothing of others, nearly all of what is beside them, in any order."""
    spans, heads, key_dim = spans_of([True, False, False], device, (33, 64, 2)), 2, 20
    query, key, value = (rows_of(spans, torch.bfloat16, heads, key_dim) for _ in range(3))
    chosen = torch.randint(2, (99, heads, key_dim), device=device)
    step = torch.tensor(steps, device=device)[chosen].bfloat16()
    decay = Decay(torch.zeros(heads, device=device), torch.zeros(heads, key_dim, device=device))
    given = [query, key, value, step, rows_of(spans, torch.bfloat16, heads), decay]
    state = torch.randn(NUM_ROWS, heads, key_dim, key_dim, device=device)
    check(gated_delta_rule, in_turn(reference.gated_delta_rule), given, spans, state)


@pytest.mark.parametrize(
    ("lens", "heads", "groups", "dim", "size"),
    [(LONGER[0], 2, 1, 48, 128), (LONGER[1], 2, 2, 6, 10), (LONGER[2], 2, 1, 64, 64)],
)
def test_state_space_scan_of_longer_spans(
    lens: tuple[int, ...], heads: int, groups: int, dim: int, size: int, device: torch.device
) -> None:
    spans = spans_of([True, False, False, True, False][: len(lens)], device, lens)
    inward, outward = (rows_of(spans, torch.bfloat16, groups, size) for _ in range(2))
    x, step = rows_of(spans, torch.bfloat16, heads, dim), rows_of(spans, torch.bfloat16, heads)
    given = [x, step, decay_of(device, heads), inward, outward, torch.randn(heads, device=device)]
    state = torch.randn(NUM_ROWS, heads, dim, size, device=device)
    check(state_space_scan, in_turn(reference.state_space_scan), given, spans, state)


@pytest.mark.parametrize("by_row", [False, True])
def test_keys_that_are_alike_do_not_make_errors_grow(by_row: bool, device: torch.device) -> None:
    """A prompt that repeats one token: powers of what its tokens change for each other exceed 10^17."""
    spans, heads = spans_of([True], device, (64,)), 2
    query, value = (rows_of(spans, torch.bfloat16, heads, 16) for _ in range(2))
    key = query[:1] + 0.05 * rows_of(spans, torch.bfloat16, heads, 16)
    of_head = (heads, 16) if by_row else (heads,)
    beta = torch.full((64, heads), 9.0, device=device).bfloat16()
    step = torch.full((64, *of_head), -20.0, device=device).bfloat16()
    decay = Decay(torch.zeros(heads, device=device), torch.zeros(of_head, device=device))
    given = query, key, value, step, beta, decay
    states = [torch.full((NUM_ROWS, heads, 16, 16), torch.nan, device=device) for _ in range(2)]
    found = gated_delta_rule(*given, states[0], spans)
    assert_close(found, in_turn(reference.gated_delta_rule)(*given, states[1], spans))
    torch.testing.assert_close(states[0], states[1], rtol=5e-4, atol=5e-4, equal_nan=True)
