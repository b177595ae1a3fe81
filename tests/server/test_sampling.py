"""The batched sampler against one that takes a row at a time, and what must hold whatever is asked of it."""

import math
import random

import naive_sampler
import pytest
import torch
from penstock_kernels import gumbel
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.watermark import z_score
from sampler_rows import VOCAB, Row, allow, random_row, run


def naive_choice(logits: list[float], row: Row) -> tuple[int, float]:
    """The token, and by how much it won: a draw nearly lost may go the other way in float32."""
    scores = naive_sampler.adjusted(logits, row.params, row.prompt, row.output)
    if row.params.temperature > 0:
        scores = naive_sampler.kept(scores, row.params)
        position = len(row.prompt) + len(row.output)
        scores = [
            score + naive_sampler.gumbel(row.params.seed, position, t) for t, score in enumerate(scores)
        ]
    first, second = sorted(scores, reverse=True)[:2]
    return scores.index(first), first - second


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_naive_sampler(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(rng.choice([1, 3, 9]))]
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    sampled = run(logits.clone(), rows)
    raw = logits.double().log_softmax(-1)
    for number, row in enumerate(rows):
        token, margin = naive_choice(logits[number].tolist(), row)
        if margin > 1e-3:
            assert int(sampled.token_ids[number]) == token, row
        assert float(sampled.logprobs[number]) == pytest.approx(
            float(raw[number, sampled.token_ids[number]]), abs=1e-5
        )


def test_a_row_does_not_depend_on_its_company() -> None:
    rng = random.Random(5)
    rows = [random_row(rng) for _ in range(12)]
    logits = torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(5)) * 3
    together = run(logits.clone(), rows).token_ids.tolist()
    assert together == [int(run(logits[n : n + 1].clone(), [row]).token_ids) for n, row in enumerate(rows)]


def test_greedy_batch_is_the_plain_argmax_and_leaves_the_logits_alone() -> None:
    logits = torch.randn(4, VOCAB)
    before = logits.clone()
    sampled = run(logits, [Row(SamplingParams(), [1], []) for _ in range(4)])
    assert torch.equal(sampled.token_ids, before.argmax(-1))
    assert torch.equal(logits, before)


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5] + [-math.inf] * 3)
    noise = gumbel(torch.full((20_000,), 1234), torch.arange(20_000), 8)
    drawn = (logits + noise).argmax(-1).bincount(minlength=8) / 20_000
    torch.testing.assert_close(drawn, logits.softmax(-1), atol=0.012, rtol=0)


def test_noise_is_finite_uniform_and_a_function_of_its_counter() -> None:
    seeds = torch.tensor([0, 1, -1, 2**62, -(2**63)])
    noise = gumbel(seeds, torch.tensor([0, 7, 2**31, 5, 1]), 4096)
    assert noise.isfinite().all()
    uniform = torch.exp(-torch.exp(-noise)).sort(dim=1).values
    steps = torch.linspace(0, 1, 4096)
    assert float((uniform - steps).abs().max()) < 0.035  # Kolmogorov-Smirnov, far beyond its 1e-4 quantile
    assert float(noise[1, 17]) == pytest.approx(naive_sampler.gumbel(1, 7, 17), rel=1e-5)
    assert float(noise[2, 3]) == pytest.approx(naive_sampler.gumbel(2**64 - 1, 2**31, 3), rel=1e-5)


EXTREMES = [
    SamplingParams(temperature=1e-5),
    SamplingParams(temperature=3e38),
    SamplingParams(temperature=1.0, top_p=1e-40),
    SamplingParams(temperature=1.0, min_p=1.0),
    SamplingParams(temperature=1.0, typical_p=1e-40),
    SamplingParams(temperature=1.0, top_k=10**6),
    SamplingParams(temperature=1.0, repetition_penalty=1e-38),
    SamplingParams(temperature=1e-4, repetition_penalty=3e38),
    SamplingParams(temperature=1.0, frequency_penalty=3e38, presence_penalty=-3e38),
    SamplingParams(temperature=1.0, repetition_penalty=3e38, frequency_penalty=-3e38),
    SamplingParams(temperature=0.1, logit_bias_ids=(3, 4), logit_bias_values=(3e38, -3e38)),
    SamplingParams(temperature=1.0, min_new_tokens=9, suppressed_ids=tuple(range(VOCAB - 1))),
    SamplingParams(temperature=1.0, top_k=1, top_p=0.01, min_p=0.9, typical_p=0.01),
]


@pytest.mark.parametrize("params", EXTREMES)
@pytest.mark.parametrize("spread", [0.0, 1.0, 1e4, 1e30])
def test_extremes_choose_a_valid_token(params: SamplingParams, spread: float) -> None:
    logits = torch.linspace(-1, 1, VOCAB).roll(7)[None] * spread
    sampled = run(logits, [Row(params, [1, 2], [3, 3])])
    assert 0 <= int(sampled.token_ids) < VOCAB
    assert bool(sampled.logprobs.isfinite())
    assert bool(sampled.finite)
    if params.suppressed_ids:
        assert int(sampled.token_ids) == VOCAB - 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_not_finite_are_distinguished(bad: float) -> None:
    logits = torch.randn(3, VOCAB)
    logits[1, 5] = bad
    sampled = run(logits, [Row(SamplingParams(temperature=1.0, top_p=0.9), [1], []) for _ in range(3)])
    assert sampled.finite.tolist() == [True, False, True]
    assert ((sampled.token_ids >= 0) & (sampled.token_ids < VOCAB)).all()


@pytest.mark.parametrize(("delta", "low", "high"), [(0.0, -3, 3), (2.0, 4, 20), (-2.0, -20, -4)])
def test_a_watermark_can_be_recognised(delta: float, low: float, high: float) -> None:
    output: list[int] = []
    for seed in range(48):
        params = SamplingParams(temperature=1.0, seed=seed, watermark_delta=delta, watermark_gamma=0.5)
        sampled = run(torch.zeros(1, VOCAB), [Row(params, [7], output)])
        output.append(int(sampled.token_ids[0]))
    assert low < z_score([7, *output], 0.5, VOCAB) < high


def test_a_watermark_moves_the_most_likely_token_and_no_logprob() -> None:
    logits = torch.zeros(2, VOCAB)
    plain, marked = SamplingParams(), SamplingParams(watermark_delta=2.0, watermark_gamma=0.25)
    sampled = run(logits, [Row(plain, [7], []), Row(marked, [7], [])])
    assert int(sampled.token_ids[0]) == 0
    assert int(sampled.token_ids[1]) > 0
    assert sampled.logprobs.tolist() == pytest.approx([-math.log(VOCAB)] * 2)


def test_named_tokens_are_reported_in_the_place_of_the_most_likely() -> None:
    logits = torch.randn(3, VOCAB)
    named, most = SamplingParams(num_top_logprobs=2, logprob_ids=(9, 3)), SamplingParams(num_top_logprobs=3)
    drawn = SamplingParams(temperature=1.0, num_top_logprobs=1, logprob_ids=(VOCAB - 1,))
    sampled = run(logits, [Row(params, [7], []) for params in (named, most, drawn)])
    assert sampled.top_ids is not None
    assert sampled.top_logprobs is not None
    expected = logits.log_softmax(dim=-1)
    assert sampled.top_ids[0, :2].tolist() == [9, 3]
    torch.testing.assert_close(sampled.top_logprobs[0, :2], expected[0, [9, 3]])
    assert sampled.top_ids[1].tolist() == expected[1].topk(3).indices.tolist()
    assert int(sampled.top_ids[2, 0]) == VOCAB - 1
    torch.testing.assert_close(sampled.top_logprobs[2, 0], expected[2, VOCAB - 1])


def test_a_grammar_mask_without_tokens_is_reported() -> None:
    bits = torch.zeros(2, -(-VOCAB // 32), dtype=torch.int32)
    bits[0, 1] = 1 << 3
    rows = [Row(SamplingParams(temperature=1.0), [1], []) for _ in range(3)]
    sampled = run(torch.randn(3, VOCAB), rows, GrammarMasks([0, 2], bits))
    assert sampled.possible is not None
    assert sampled.possible.tolist() == [True, True, False]
    assert int(sampled.token_ids[0]) == 35


def test_suppression_outweighs_a_bias_of_the_same_token() -> None:
    params = SamplingParams(
        logit_bias_ids=(4, 4, 9), logit_bias_values=(3.0, 3.0, 5.0), min_new_tokens=2, suppressed_ids=(4, 8)
    )
    logits = torch.zeros(1, VOCAB)
    assert run(logits, [Row(params, [1], [])]).token_ids.tolist() == [9]
    assert run(logits, [Row(params, [1], [2, 2])]).token_ids.tolist() == [4], "biases of one token add up"


def banned(*sequences: tuple[int, ...]) -> SamplingParams:
    """Greedy, without these sequences."""
    return SamplingParams(
        banned_ids=tuple(token for sequence in sequences for token in sequence),
        banned_lens=tuple(len(sequence) for sequence in sequences),
    )


def test_the_last_token_of_a_banned_sequence_is_excluded_behind_the_others() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 7], logits[0, 8] = 3, 2
    params = banned((5, 6, 7), (9, 7))

    def chosen(output: list[int], prompt: list[int] | None = None) -> int:
        return int(run(logits, [Row(params, prompt or [1], output)]).token_ids)

    assert chosen([5, 6]) == chosen([2, 5, 6]) == chosen([9]) == 8
    assert chosen([6]) == chosen([5]) == chosen([6, 5]) == chosen([]) == 7
    assert chosen([6], prompt=[5]) == 7, "only what was generated counts"
    assert int(run(logits, [Row(banned((7,), (4, 4)), [1], [])]).token_ids) == 8, "a token by itself"


def test_only_allowed_tokens_are_chosen() -> None:
    logits = torch.arange(VOCAB).float()[None].repeat(3, 1)
    rows = [
        Row(SamplingParams(allowed_mask=allow([3, 9])), [1], []),
        Row(SamplingParams(), [1], []),
        Row(SamplingParams(temperature=5.0, allowed_mask=allow([0])), [1], []),
    ]
    sampled = run(logits, rows)
    assert sampled.token_ids.tolist() == [9, VOCAB - 1, 0]
    assert sampled.possible is not None
    assert sampled.possible.all()


def test_exclusions_are_told_to_leave_no_token() -> None:
    params = SamplingParams(allowed_mask=allow([3]), banned_ids=(3, 3), banned_lens=(2,))
    sampled = run(torch.zeros(2, VOCAB), [Row(params, [1], [2]), Row(params, [1], [3])])
    assert sampled.possible is not None
    assert sampled.possible.tolist() == [True, False]


def test_exclusions_and_a_grammar_allow_what_both_allow() -> None:
    bits = torch.zeros(1, -(-VOCAB // 32), dtype=torch.int32)
    bits[0, 0] = 0b1110
    params = SamplingParams(allowed_mask=allow([2, 3, 9]), banned_ids=(3,), banned_lens=(1,))
    sampled = run(torch.arange(VOCAB).float()[None], [Row(params, [1], [])], GrammarMasks([0], bits))
    assert sampled.token_ids.tolist() == [2]
