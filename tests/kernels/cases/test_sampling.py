"""The sampler and its noise against their references."""

import pytest
import torch
from closeness import assert_close
from penstock_kernels import (
    DrawParams,
    PenaltyParams,
    add_bias,
    apply_bitmask,
    draw,
    gumbel,
    penalize,
    reference,
    token_logprobs,
    uniform,
)


def _params(num_rows: int, device: torch.device, **changes: float) -> DrawParams:
    """Equal parameters for all rows, except for seeds and positions; everything is off by default."""
    numbers = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **changes}
    columns = {name: torch.full((num_rows,), value, device=device) for name, value in numbers.items()}
    columns["top_k"] = torch.full((num_rows,), changes.get("top_k", 0), dtype=torch.int32, device=device)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), device=device)
    return DrawParams(**columns, seeds=seeds, positions=torch.arange(num_rows, device=device) + 7)


TRUNCATIONS: list[dict[str, float]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 4000},
    {"top_p": 0.01},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"typical_p": 0.4},
    {"temperature": 0.5, "typical_p": 0.9},
    # Flat rows: the thresholds lie beyond the likely tokens.
    {"temperature": 9.0, "top_k": 3000},
    {"temperature": 9.0, "top_p": 0.9, "typical_p": 0.8},
    {"temperature": 1.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.95},
]


@pytest.mark.parametrize("changes", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 63, 5000])
def test_draws_what_its_reference_draws(
    vocab_size: int, changes: dict[str, float], device: torch.device
) -> None:
    scores = 4 * torch.randn(2, vocab_size + 3, device=device)[:, :vocab_size]
    params = _params(2, device, **changes)
    assert torch.equal(draw(scores, params), reference.draw(scores, params))


def test_rows_draw_by_their_own_parameters(device: torch.device) -> None:
    scores = 3 * torch.randn(4, 300, device=device)
    parts = [_params(1, device, **changes) for changes in TRUNCATIONS[2:6]]
    together = DrawParams(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
    found = draw(scores, together)
    assert found.tolist() == [int(draw(scores[row : row + 1], part)) for row, part in enumerate(parts)]


def test_draws_follow_the_truncated_softmax(device: torch.device) -> None:
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0]], device=device).repeat(50, 1)
    found = draw(scores, _params(50, device, min_p=0.1)).bincount(minlength=4) / 50
    expected = torch.tensor([2.0, 1.0, 0.0, -torch.inf]).softmax(0).to(device)
    assert (found - expected).abs().max() < 0.2


def test_ties_on_a_threshold_stay(device: torch.device) -> None:
    scores = torch.zeros(5, 16, device=device)
    scores[:, 8:] = -50.0
    found = draw(scores, _params(5, device, top_k=2))
    assert 1 < len(set(found.tolist())) <= 5
    assert int(found.max()) < 8


def test_banned_rows_and_rows_of_nan_stay_within_the_vocabulary(device: torch.device) -> None:
    scores = torch.full((3, 63), -torch.inf, device=device)
    scores[1] = torch.nan
    scores[2, 17] = 1.0
    found = draw(scores, _params(3, device, top_k=5, top_p=0.5))
    assert ((found >= 0) & (found < 63)).all()
    assert found[2] == 17


@pytest.mark.parametrize("vocab_size", [1, 63, 2500])
def test_noise(vocab_size: int, device: torch.device) -> None:
    seeds = torch.tensor([0, 1, -1, 2**62, -(2**63)], device=device)
    positions = torch.tensor([0, 7, 2**31, 5, 1], device=device)
    expected = reference.gumbel(seeds, positions, vocab_size)
    torch.testing.assert_close(gumbel(seeds, positions, vocab_size), expected, atol=2e-5, rtol=1e-5)
    assert torch.equal(uniform(seeds, vocab_size), reference.uniform(seeds, vocab_size))
    assert gumbel(seeds[:0], positions[:0], vocab_size).shape == (0, vocab_size)


@pytest.mark.parametrize("vocab_size", [63, 5000])
def test_penalties(vocab_size: int, device: torch.device) -> None:
    scores = 4 * torch.randn(3, vocab_size, device=device)
    params = PenaltyParams(
        tokens=torch.randint(0, vocab_size, (5, 80), dtype=torch.int32, device=device),
        slots=torch.tensor([4, 0, 2], device=device),
        lengths=torch.tensor([1, 80, 63], device=device),
        prompt_lens=torch.tensor([1, 20, 0], device=device),
        repetition=torch.tensor([1.5, 1.0, 0.7], device=device),
        frequency=torch.tensor([0.0, 0.3, -0.2], device=device),
        presence=torch.tensor([0.5, 0.0, 1.0], device=device),
    )
    expected = scores.clone()
    penalize(scores, params, max_len=80)
    reference.penalize(expected, params, max_len=80)
    assert_close(scores, expected)


def test_bias_and_bitmask(device: torch.device) -> None:
    scores = torch.randn(4, 100, device=device)
    expected = scores.clone()
    rows, ids = torch.tensor([[0, 0, 3], [5, 99, 0]], device=device)
    values = torch.tensor([1.5, -torch.inf, 2e38], device=device)
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 3), dtype=torch.int32, device=device)
    masked = torch.tensor([1, 3], device=device)
    add_bias(scores, rows, ids, values)
    apply_bitmask(scores, masked, bits)
    reference.add_bias(expected, rows, ids, values)
    reference.apply_bitmask(expected, masked, bits)
    assert torch.equal(scores, expected)
    assert scores[0, 99] == -torch.inf
    assert (scores[[1, 3], 96:] == -torch.inf).all()


def test_penalties_beyond_float32_leave_numbers(device: torch.device) -> None:
    scores = torch.tensor([[1e30, -1e30, 1.0]], device=device)
    numbers = {"repetition": 1e-38, "frequency": 3e38, "presence": -3e38}
    params = PenaltyParams(
        tokens=torch.tensor([[0, 0, 1, 1, 2]], dtype=torch.int32, device=device),
        slots=torch.tensor([0], device=device),
        lengths=torch.tensor([4], device=device),
        prompt_lens=torch.tensor([0], device=device),
        **{name: torch.tensor([value], device=device) for name, value in numbers.items()},
    )
    expected = scores.clone()
    penalize(scores, params, max_len=5)
    reference.penalize(expected, params, max_len=5)
    assert scores.tolist() == expected.tolist() == torch.tensor([[-1e37, -1e37, 1.0]]).tolist()


def test_equal_logits_are_returned_in_the_order_of_their_ids(device: torch.device) -> None:
    logits = torch.zeros(3, 90, device=device)
    logits[1, 70:] = 1.0
    logits[2, 40] = -1.0
    found = token_logprobs(logits, torch.zeros(3, dtype=torch.int64, device=device), 3)
    assert found.top_ids.tolist() == [[0, 1, 2], [70, 71, 72], [0, 1, 2]]


@pytest.mark.parametrize(("vocab_size", "num_top"), [(1, 1), (63, 0), (63, 5), (2500, 1), (2500, 20)])
def test_logprobs(vocab_size: int, num_top: int, device: torch.device) -> None:
    logits = (4 * torch.randn(3, vocab_size, device=device)).round(decimals=2)  # with ties
    tokens = torch.randint(0, vocab_size, (3,), device=device)
    found = token_logprobs(logits, tokens, num_top)
    expected = reference.token_logprobs(logits.double(), tokens, num_top)
    assert_close(found.chosen, expected.chosen, slack=4)
    assert found.finite.all()
    assert torch.equal(found.top_ids, expected.top_ids)
    assert_close(found.top_logprobs, expected.top_logprobs, slack=4)


def test_rows_that_are_not_finite_are_reported(device: torch.device) -> None:
    logits = torch.randn(5, 2500, device=device)
    logits[1:4, 2400] = torch.tensor([torch.nan, torch.inf, -torch.inf], device=device)
    found = token_logprobs(logits, torch.zeros(5, dtype=torch.int64, device=device), 2)
    assert found.finite.tolist() == [True, False, False, False, True]
