"""The server's sampler on kernels against the same without them: a GPU serves what a CPU serves."""

import random

import pytest
import torch
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.sampling import Sampled
from penstock_server.engine.sampling_params import SamplingParams
from sampler_rows import VOCAB, Row, random_row, run


def _both(
    logits: torch.Tensor,
    rows: list[Row],
    device: torch.device,
    patch: pytest.MonkeyPatch,
    masks: GrammarMasks | None = None,
) -> tuple[Sampled, Sampled]:
    found = run(logits.to(device), rows, masks)
    with patch.context() as without_kernels:
        without_kernels.setattr("penstock_kernels.base.devices.INTERPRETS", False)
        return found, run(logits, rows, masks)


def _assert_same(found: Sampled, expected: Sampled) -> None:
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.finite.tolist() == expected.finite.tolist()
    torch.testing.assert_close(found.logprobs.cpu(), expected.logprobs, atol=1e-5, rtol=0)
    assert (found.possible is None) == (expected.possible is None)
    if found.possible is not None and expected.possible is not None:
        assert found.possible.tolist() == expected.possible.tolist()
    assert (found.top_ids is None) == (expected.top_ids is None)
    if found.top_ids is not None and expected.top_ids is not None:
        assert found.top_ids.tolist() == expected.top_ids.tolist()
        assert found.top_logprobs is not None
        torch.testing.assert_close(found.top_logprobs.cpu(), expected.top_logprobs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_rows_of_any_parameters(seed: int, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(6)]
    rows.append(Row(SamplingParams(watermark_delta=2.0, watermark_gamma=0.3), [7], [9]))
    logits = 3 * torch.randn(len(rows), VOCAB)
    masks = GrammarMasks([0, 5], torch.randint(-(2**31), 2**31 - 1, (2, 2), dtype=torch.int32))
    found, expected = _both(logits, rows, device, monkeypatch, masks if seed % 2 else None)
    _assert_same(found, expected)
    excludes = any(row.params.banned_lens or row.params.allowed_mask for row in rows)
    assert (found.possible is None) == (seed % 2 == 0 and not excludes)


def test_greedy_rows(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(5, 2500)
    found, expected = _both(logits, [Row(SamplingParams(), [1], []) for _ in range(5)], device, monkeypatch)
    _assert_same(found, expected)
    assert found.token_ids.tolist() == logits.argmax(-1).tolist()


def test_rows_that_are_not_finite(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, 5] = torch.nan
    rows = [Row(SamplingParams(temperature=1.0, top_p=0.9, seed=n), [1], []) for n in range(3)]
    found, expected = _both(logits, rows, device, monkeypatch)
    assert found.finite.tolist() == expected.finite.tolist() == [True, False, True]
    assert found.token_ids.tolist()[::2] == expected.token_ids.tolist()[::2]
    assert 0 <= int(found.token_ids[1]) < VOCAB
