"""Chooses tokens for a batch of rows. A row's result depends on nothing but that row.

Every stage runs over just the rows that need it, and truncation works by thresholds on values, so that a neighbour
with other parameters changes nothing, and a batch that only wants the most likely tokens costs one argmax.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from penstock_server.generator import gumbel
from penstock_server.grammar import GrammarMasks, unpack
from penstock_server.plan import Feature
from penstock_server.rows import Column
from penstock_server.step import SamplingInput
from penstock_server.watermark import green_tokens

# Far beyond any logit, far below overflow when two of them are added.
_LARGEST = 1e37
# Tokens among which top_p is nearly always reached. Of a vocabulary of 152,000 they cost 0.6 ms a row on a CPU, all 12.
_LIKELY_ENOUGH = 4096


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a batch of rows chose; all tensors [num_rows] or [num_rows, most top tokens any row asked for]."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    finite: torch.Tensor
    # Whether a token was left to choose; None when no row is constrained by a grammar.
    possible: torch.Tensor | None
    top_ids: torch.Tensor | None
    top_logprobs: torch.Tensor | None


def sample(
    logits: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor, masks: GrammarMasks | None = None
) -> Sampled:
    """logits: [num_rows, vocab_size] float32; tokens: the slots' [num_slots, max_sequence_len].

    Log probabilities are of the raw logits, before penalties and temperature.
    """
    scores = _constrain(_adjust(logits, inputs, tokens), masks)
    token_ids = scores.argmax(dim=-1)
    drawn = inputs.having(Feature.DRAW)
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        token_ids[rows] = _draw(scores[rows], _subset(inputs, drawn, rows))
    normalizers = logits.logsumexp(dim=-1)
    top_ids, top_logprobs = _top_tokens(logits, normalizers, inputs)
    return Sampled(
        token_ids=token_ids,
        logprobs=logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) - normalizers,
        # One pass: any NaN or infinity makes the sum so.
        finite=logits.sum(dim=-1).isfinite(),
        possible=None if masks is None else scores.amax(dim=-1) > -torch.inf,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Log probabilities of given tokens: [num_rows, vocab_size], [num_rows] to [num_rows]."""
    return logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=-1)


def _top_tokens(
    logits: torch.Tensor, normalizers: torch.Tensor, inputs: SamplingInput
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    most = max(row.params.num_top_logprobs for row in inputs.rows)
    if most == 0:
        return None, None
    values, ids = logits.topk(most, dim=-1)
    return ids, values - normalizers.unsqueeze(1)


def _subset(inputs: SamplingInput, numbers: list[int], rows: torch.Tensor) -> SamplingInput:
    if len(numbers) == len(inputs.rows):
        return inputs
    return SamplingInput(
        rows=[inputs.rows[number] for number in numbers],
        slots=inputs.slots[rows],
        lengths=inputs.lengths[rows],
        prompt_lens=inputs.prompt_lens[rows],
        params=inputs.params[rows],
        seeds=inputs.seeds[rows],
    )


Stage = Callable[[torch.Tensor, SamplingInput], torch.Tensor]


def _run(stage: Stage, feature: Feature, scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    """Run a stage over the rows that need it; the others keep their bits."""
    numbers = inputs.having(feature)
    if not numbers:
        return scores
    if len(numbers) == len(inputs.rows):
        return stage(scores, inputs)
    rows = torch.tensor(numbers, device=scores.device)
    return scores.index_copy(0, rows, stage(scores[rows], _subset(inputs, numbers, rows)))


def _adjust(logits: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> torch.Tensor:
    """Watermark, penalties, bias, suppression: what also moves the most likely token."""
    scores = _run(lambda part, rows: _watermark(part, rows, tokens), Feature.WATERMARK, logits, inputs)
    scores = _run(lambda part, rows: _penalize(part, rows, tokens), Feature.PENALTIES, scores, inputs)
    scores = _run(_bias, Feature.BIAS, scores, inputs)
    if scores is not logits:
        scores = scores.nan_to_num(nan=0.0).clamp(-_LARGEST, _LARGEST)
    return _run(_suppress, Feature.SUPPRESSED, scores, inputs)


def _constrain(scores: torch.Tensor, masks: GrammarMasks | None) -> torch.Tensor:
    if masks is None:
        return scores
    rows = torch.tensor(masks.rows, device=scores.device)
    allowed = unpack(masks.bits.to(scores.device), scores.shape[1])
    return scores.index_copy(0, rows, _keep(scores[rows], allowed))


def _column(inputs: SamplingInput, column: Column) -> torch.Tensor:
    return inputs.params[:, column : column + 1]


def _penalize(scores: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> torch.Tensor:
    longest = max(row.position for row in inputs.rows)
    history = tokens[inputs.slots, :longest].long()
    positions = torch.arange(longest, device=scores.device)
    known = positions < inputs.lengths.unsqueeze(1)
    output = known & (positions >= inputs.prompt_lens.unsqueeze(1))
    history = history.masked_fill(~known, 0)  # beyond its length a row holds another sequence's tokens
    seen = torch.zeros_like(scores).scatter_add_(1, history, known.float()) > 0
    counts = torch.zeros_like(scores).scatter_add_(1, history, output.float())
    repetition = _column(inputs, Column.REPETITION_PENALTY)
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    scores = torch.where(seen & (repetition != 1), repeated, scores)
    scores = scores - counts * _column(inputs, Column.FREQUENCY_PENALTY)
    return scores - (counts > 0) * _column(inputs, Column.PRESENCE_PENALTY)


def _watermark(scores: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> torch.Tensor:
    previous = tokens[inputs.slots, inputs.lengths - 1].long()
    green = green_tokens(previous, _column(inputs, Column.WATERMARK_GAMMA), scores.shape[1])
    return scores + green * _column(inputs, Column.WATERMARK_DELTA)


def _bias(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    rows = [number for number, row in enumerate(inputs.rows) for _ in row.params.logit_bias_ids]
    ids = [token for row in inputs.rows for token in row.params.logit_bias_ids]
    values = [value for row in inputs.rows for value in row.params.logit_bias_values]
    index = torch.tensor([rows, ids], device=scores.device)
    return scores.index_put((index[0], index[1]), torch.tensor(values, device=scores.device), accumulate=True)


def _suppress(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    rows = [number for number, row in enumerate(inputs.rows) for _ in row.params.suppressed_ids]
    ids = [token for row in inputs.rows for token in row.params.suppressed_ids]
    index = torch.tensor([rows, ids], device=scores.device)
    return scores.index_put((index[0], index[1]), torch.tensor(-torch.inf, device=scores.device))


def _draw(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    """Temperature, truncation, then the largest of score + Gumbel noise, which draws from the softmax."""
    # From here the largest score of a row is 0: the division cannot overflow upwards.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / _column(inputs, Column.TEMPERATURE)
    scores = _run(_top_k, Feature.TOP_K, scores, inputs)
    scores = _run(_top_p, Feature.TOP_P, scores, inputs)
    scores = _run(_min_p, Feature.MIN_P, scores, inputs)
    scores = _run(_typical_p, Feature.TYPICAL_P, scores, inputs)
    noise = gumbel(inputs.seeds, inputs.lengths, scores.shape[1])
    return (scores + noise).argmax(dim=-1)


def _keep(scores: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~kept, -torch.inf)


def _top_k(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    most = min(max(row.params.top_k for row in inputs.rows), scores.shape[1])
    values = scores.topk(most, dim=-1).values
    last = _column(inputs, Column.TOP_K).long().clamp(max=most) - 1
    return _keep(scores, scores >= values.gather(1, last))


def _top_p(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    top_p = _column(inputs, Column.TOP_P)
    normalizers = scores.logsumexp(dim=-1, keepdim=True)
    for count in (min(_LIKELY_ENOUGH, scores.shape[1]), scores.shape[1]):
        values = scores.topk(count, dim=-1).values
        mass = (values - normalizers).exp_().cumsum(dim=-1)
        if count == scores.shape[1] or bool((mass[:, -1:] >= top_p).all()):
            break
    # The token that reaches top_p is kept, too.
    last = (mass < top_p).sum(dim=-1, keepdim=True).clamp(max=count - 1)
    return _keep(scores, scores >= values.gather(1, last))


def _min_p(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    return _keep(scores, scores >= scores.amax(dim=-1, keepdim=True) + _column(inputs, Column.MIN_P).log())


def _typical_p(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    logprobs = scores.log_softmax(dim=-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).nansum(dim=-1, keepdim=True)  # 0 * -inf of what was cut off before
    surprise = (-logprobs - entropy).abs()
    ordered, order = surprise.sort(dim=-1, stable=True)
    mass = probabilities.gather(1, order).cumsum(dim=-1)
    last = (mass < _column(inputs, Column.TYPICAL_P)).sum(dim=-1, keepdim=True).clamp(max=scores.shape[1] - 1)
    return _keep(scores, surprise <= ordered.gather(1, last))
