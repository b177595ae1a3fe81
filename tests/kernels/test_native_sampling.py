"""The sampler in C: every width of vectors, rows of any length, and the same bits for a row in any batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from penstock_kernels import DrawParams, apply_bitmask, draw, reference, token_logprobs
from penstock_kernels.native import sampling as native

_WIDTHS = [1, 3, 15, 16, 17, 61, 2048, 5003]
_LANES = [4, 8, 16]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _params(num_rows: int, **changes: float) -> DrawParams:
    numbers = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **changes}
    columns = {name: torch.full((num_rows,), value) for name, value in numbers.items()}
    columns["top_k"] = torch.full((num_rows,), int(changes.get("top_k", 0)), dtype=torch.int32)
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,))
    return DrawParams(**columns, seeds=seeds, positions=torch.arange(num_rows) + 7)


_MIXED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.95}


@pytest.mark.parametrize("lanes", _LANES)
@pytest.mark.parametrize("vocab_size", _WIDTHS)
def test_every_width_of_vectors_scores_like_the_reference(vocab_size: int, lanes: int) -> None:
    logits = (5 * torch.randn(7, vocab_size + 1))[:, :vocab_size]
    given = torch.randint(0, vocab_size, (7,))
    num_top = min(5, vocab_size)
    ids, chosen, finite, top_ids, top = native.token_logprobs(logits, given, num_top, lanes)
    expected = reference.token_logprobs(logits.double(), given, num_top)
    assert ids is given
    torch.testing.assert_close(chosen.double(), expected.chosen, atol=1e-5, rtol=0)
    torch.testing.assert_close(top.double(), expected.top_logprobs, atol=1e-5, rtol=0)
    assert torch.equal(top_ids, expected.top_ids)
    assert finite.all()
    ids, most_likely, *_ = native.token_logprobs(logits, None, 0, lanes)
    assert torch.equal(ids, logits.argmax(-1))
    assert torch.equal(native.most_likely(logits, lanes), ids)
    assert torch.equal(most_likely, top[:, 0])


@pytest.mark.parametrize("lanes", _LANES)
def test_of_equal_logits_the_first_is_chosen(lanes: int) -> None:
    logits = torch.zeros(4, 100)
    logits[1, [70, 33, 34]] = 2.0
    logits[2, 99] = 1.0
    logits[3, 1:] = -1.0
    ids, _, _, top_ids, _ = native.token_logprobs(logits, None, 3, lanes)
    assert ids.tolist() == native.most_likely(logits, lanes).tolist() == [0, 33, 99, 0]
    assert top_ids.tolist() == [[0, 1, 2], [33, 34, 70], [99, 0, 1], [0, 1, 2]]


@pytest.mark.parametrize("lanes", _LANES)
def test_rows_that_are_not_finite_are_reported_and_scored_like_the_reference(lanes: int) -> None:
    logits = torch.randn(6, 37)
    logits[1, 36] = -torch.inf
    logits[2, 5] = torch.inf
    logits[3, [7, 20]] = torch.nan
    logits[4] = -torch.inf
    logits[5, 0] = torch.nan
    ids, chosen, finite, *top = native.token_logprobs(logits, None, 3, lanes)
    expected = reference.token_logprobs(logits, ids, 3)
    assert ids.tolist() == native.most_likely(logits, lanes).tolist() == logits.argmax(-1).tolist()
    assert finite.tolist() == expected.finite.tolist() == [True, False, False, False, False, False]
    torch.testing.assert_close(chosen, expected.chosen, atol=1e-5, rtol=0, equal_nan=True)
    torch.testing.assert_close(top[1], expected.top_logprobs, atol=1e-5, rtol=0, equal_nan=True)
    assert torch.equal(top[0], expected.top_ids)


def test_a_large_flat_vocabulary_keeps_its_precision() -> None:
    logits = torch.full((1, 152_064), 0.1)
    logits[0, 0] = 0.2
    _, chosen, *_ = native.token_logprobs(logits, None, 0, 4)
    assert abs(float(chosen) - float(logits.double().log_softmax(-1)[0, 0])) < 2e-6


@pytest.mark.parametrize("token", [-1, 40])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(IndexError, match=f"token {token} of row 1"):
        token_logprobs(torch.randn(3, 40), torch.tensor([0, token, 2]))


# Words that allow all their tokens, or none, or some; masks that end before, at and behind the end of the vocabulary.
@pytest.mark.parametrize("num_words", [1, 3, 4, 6])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 100, 128])
def test_masks_forbid_what_the_reference_forbids(vocab_size: int, num_words: int) -> None:
    scores = torch.randn(5, vocab_size + 7)[:, :vocab_size]
    bits = torch.randint(-(2**31), 2**31 - 1, (3, num_words), dtype=torch.int32)
    bits[0, 0], bits[1, 0] = -1, 0
    expected, rows = scores.clone(), torch.tensor([4, 0, 2])
    apply_bitmask(scores, rows, bits)
    reference.apply_bitmask(expected, rows, bits)
    assert torch.equal(scores, expected)


def test_a_mask_of_a_row_that_is_not_there_is_refused() -> None:
    scores = torch.zeros(2, 40)
    with pytest.raises(IndexError, match="row 2 is not below 2"):
        apply_bitmask(scores, torch.tensor([0, 2]), torch.zeros(2, 2, dtype=torch.int32))
    assert not scores.any()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_is_scored_and_drawn_the_same_in_any_batch(threads: int) -> None:
    logits, params = 4 * torch.randn(40, 2051), _params(40, **_MIXED)
    with _threads(1):
        scored, drawn = token_logprobs(logits, None, 4), draw(logits, params)
    with _threads(threads):
        for rows in (slice(0, 40), slice(0, 1), slice(7, 9), slice(3, 39)):
            part = token_logprobs(logits[rows], None, 4)
            assert all(torch.equal(a, b[rows]) for a, b in zip(part, scored, strict=True))
            some = DrawParams(*(column[rows] for column in params))
            assert torch.equal(draw(logits[rows], some), drawn[rows])


@pytest.mark.parametrize("lanes", _LANES)
@pytest.mark.parametrize("vocab_size", _WIDTHS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"temperature": 2.5}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"typical_p": 0.4}, _MIXED],
    ids=str,
)
def test_every_width_of_vectors_draws_like_the_reference(
    vocab_size: int, changes: dict[str, float], lanes: int
) -> None:
    scores = (4 * torch.randn(12, vocab_size + 1))[:, :vocab_size]
    scores[3:6, : vocab_size // 2] = -torch.inf  # as a grammar forbids
    params = _params(12, **changes)
    assert torch.equal(native.draw(scores, params, lanes), reference.draw(scores, params))


@pytest.mark.parametrize("lanes", _LANES)
def test_cuts_at_equal_scores_draw_like_the_reference(lanes: int) -> None:
    """A vocabulary that is read by blocks, and one that is not, where many tokens are at the same distance."""
    for vocab_size in (90, 5003):
        scores = torch.randn(24, vocab_size).round()
        scores[8:16] = 0
        scores[16:, 3:-1] = -torch.inf
        for changes in (
            {"top_k": 7},
            {"top_p": 0.6},
            {"top_k": 2, "top_p": 0.5},
            {"top_p": 0.8, "min_p": 0.3},
        ):
            params = _params(24, **changes)
            assert torch.equal(native.draw(scores, params, lanes), reference.draw(scores, params)), changes


@pytest.mark.parametrize("lanes", _LANES)
def test_rows_that_are_not_drawn_take_the_most_likely_token(lanes: int) -> None:
    scores = torch.randn(4, 61)
    scores[1] = -torch.inf
    scores[2, 40] = torch.nan
    scores[3, 17] = torch.inf
    params = _params(4, top_p=0.9)
    params.temperature[0] = 0
    assert native.draw(scores, params, lanes).tolist() == [int(scores[0].argmax()), 0, 40, 17]


@pytest.mark.parametrize("name", ["top_p", "typical_p"])
@pytest.mark.parametrize("share", [0.0, 1e-30, 1 - 2**-24])
def test_the_ends_of_a_share_draw_like_the_reference(name: str, share: float) -> None:
    scores, params = 3 * torch.randn(20, 300), _params(20, **{name: share})
    assert torch.equal(draw(scores, params), reference.draw(scores, params))


def test_a_draw_by_columns_of_other_types_runs_the_reference() -> None:
    scores, params = torch.randn(2, 30), _params(2, top_p=0.9)
    doubled = params._replace(top_p=params.top_p.double())
    assert not native.supports_draw(scores, doubled)
    assert torch.equal(draw(scores, doubled), draw(scores, params))


def test_no_rows_are_no_tokens() -> None:
    assert draw(torch.zeros(0, 9), _params(0)).shape == (0,)
    assert token_logprobs(torch.zeros(0, 9), None, 2).top_ids.shape == (0, 2)


def test_ids_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"token_ids are torch\.int32, not int64"):
        token_logprobs(torch.zeros(2, 40), torch.tensor([3, 5], dtype=torch.int32))
