"""Rows of the sampler for its tests: with random parameters, and as the tensors that a step gives it."""

import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from penstock_server.engine.exclusions import exclusions_of
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
    sampled_rows = [sampled_row(2 * number, row, device) for number, row in enumerate(rows)]
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


def sampled_row(slot: int, row: Row, device: torch.device) -> SampledRow:
    features = row.params.features()
    if len(row.output) >= row.params.min_new_tokens:
        features &= ~Feature.SUPPRESSED
    length = len(row.prompt) + len(row.output)
    exclusions = exclusions_of(row.params, device)
    return SampledRow(slot, length, len(row.output), features, row.params, exclusions)


def allow(ids: Iterable[int]) -> bytes:
    """The mask that allows these tokens."""
    mask = bytearray(-(-VOCAB // 8))
    for token in ids:
        mask[token // 8] |= 1 << token % 8
    return bytes(mask)


def random_params(rng: random.Random) -> SamplingParams:
    """Each feature is on in about half of the rows."""

    def maybe(value: float, neutral: float) -> float:
        return value if rng.random() < 0.5 else neutral

    biased = rng.sample(range(VOCAB), rng.choice([0, 3]))
    # Few different tokens are banned, so that the output of a row often ends with the start of a banned sequence.
    banned = [[rng.randrange(5) for _ in range(rng.choice([1, 2, 2, 3]))] for _ in range(rng.choice([0, 9]))]
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
        banned_ids=tuple(token for sequence in banned for token in sequence),
        banned_lens=tuple(len(sequence) for sequence in banned),
        allowed_mask=allow(rng.sample(range(VOCAB), 40)) if rng.random() < 0.3 else b"",
    )


def random_row(rng: random.Random) -> Row:
    def tokens(low: int, high: int, vocab: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(low, high))]

    vocab = rng.choice([5, VOCAB])
    return Row(random_params(rng), tokens(1, 20, vocab), tokens(0, 20, vocab))
