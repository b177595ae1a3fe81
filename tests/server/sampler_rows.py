"""Rows of the sampler for its tests: with random parameters, and as the tensors that a step gives it."""

import random
from dataclasses import dataclass

import torch
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.rows import Column
from penstock_server.engine.sampling import Sampled, sample
from penstock_server.engine.sampling_params import Feature, SamplingParams
from penstock_server.engine.step import SampledRow, SamplingInput

VOCAB = 61


@dataclass
class Row:
    params: SamplingParams
    prompt: list[int]
    output: list[int]


def run(logits: torch.Tensor, rows: list[Row], masks: GrammarMasks | None = None) -> Sampled:
    """The rows as slots 0, 2, 4 ...; what lies beyond a slot's length is somebody else's."""
    device = logits.device
    tokens = torch.full((2 * len(rows), 50), VOCAB - 1, dtype=torch.int32)
    for number, row in enumerate(rows):
        history = row.prompt + row.output
        tokens[2 * number, : len(history)] = torch.tensor(history, dtype=torch.int32)
    lengths = [len(row.prompt) + len(row.output) for row in rows]
    sampled_rows = [sampled_row(2 * number, row) for number, row in enumerate(rows)]
    inputs = SamplingInput(
        rows=sampled_rows,
        slots=torch.arange(0, 2 * len(rows), 2, device=device),
        lengths=torch.tensor(lengths, device=device),
        prompt_lens=torch.tensor([len(row.prompt) for row in rows], device=device),
        params=torch.tensor([columns(row.params) for row in rows], device=device),
        seeds=torch.tensor([row.params.seed for row in rows], device=device),
    )
    return sample(logits, inputs, tokens.to(device), masks)


def columns(params: SamplingParams) -> list[float]:
    """One row of `Slots.params`."""
    return [float(getattr(params, column.name.lower())) for column in Column]


def sampled_row(slot: int, row: Row) -> SampledRow:
    features = row.params.features()
    if len(row.output) >= row.params.min_new_tokens:
        features &= ~Feature.SUPPRESSED
    return SampledRow(slot, len(row.prompt) + len(row.output), len(row.output), features, row.params)


def random_params(rng: random.Random) -> SamplingParams:
    """Each feature is on in about half of the rows."""

    def maybe(value: float, neutral: float) -> float:
        return value if rng.random() < 0.5 else neutral

    biased = rng.sample(range(VOCAB), rng.choice([0, 3]))
    return SamplingParams(
        temperature=maybe(rng.uniform(0.2, 3), 0),
        top_k=int(maybe(rng.randint(1, 70), 0)),
        top_p=maybe(rng.uniform(0.05, 0.99), 1),
        min_p=maybe(rng.uniform(0.001, 0.3), 0),
        typical_p=maybe(rng.uniform(0.1, 0.95), 1),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0),
        seed=rng.getrandbits(63),
        logit_bias_ids=tuple(biased),
        logit_bias_values=tuple(rng.uniform(-5, 5) for _ in biased),
        num_top_logprobs=rng.choice([0, 4]),
        min_new_tokens=rng.choice([0, 5]),
        suppressed_ids=tuple(rng.sample(range(VOCAB), 6)),
    )


def random_row(rng: random.Random) -> Row:
    def tokens(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(rng.randint(low, high))]

    return Row(random_params(rng), tokens(1, 20), tokens(0, 20))
