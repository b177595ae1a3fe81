"""Chooses tokens for a batch of rows: which rows need which op, and what the ops are given.

The result of a row depends on that row only: an option is on or off for each row. What rows need is known on the host,
so that it never waits for a GPU, and a batch that only needs the most likely tokens takes one op.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import penstock_kernels as ops
import torch
from penstock_kernels import DrawParams, Logprobs, PenaltyParams
from penstock_kernels.native import choose as native
from penstock_kernels.native.choose import Chosen, SlotRows

from penstock_server.engine.exclusions import Histories, ban
from penstock_server.engine.grammar import GrammarMasks
from penstock_server.engine.rows import Column
from penstock_server.engine.sampling_params import EXCLUDING, Feature, SamplingParams
from penstock_server.engine.slot_table import Decodes
from penstock_server.engine.step import SamplingInput
from penstock_server.network.upload import copy_to_device, to_device
from penstock_server.watermark import green_tokens

# Features that can change which token is most likely.
ADJUSTING = Feature.WATERMARK | Feature.PENALTIES | Feature.BIAS | Feature.SUPPRESSED | EXCLUDING
# Far beyond any logit, far below overflow when two of them are added.
_LARGEST = 1e37


@dataclass(frozen=True, slots=True)
class Sampled:
    """The choices of a batch of rows; all tensors [num_rows] or [num_rows, most top tokens any row asked for]."""

    token_ids: torch.Tensor
    logprobs: torch.Tensor
    finite: torch.Tensor
    # Whether any token was allowed; None when no row has a grammar or exclusions.
    possible: torch.Tensor | None = None
    top_ids: torch.Tensor | None = None
    top_logprobs: torch.Tensor | None = None
    # The results of the decodes that are sampled apart; their tokens are among the others, too.
    apart: "Sampled | None" = None


class Scored(NamedTuple):
    """Log probabilities of given tokens, [num_rows], and the most likely ones in their places, [num_rows, num_top]."""

    logprobs: torch.Tensor
    top_ids: torch.Tensor
    top_logprobs: torch.Tensor
    # Place of the given tokens among all, [num_rows]; 1 is the most likely.
    ranks: torch.Tensor


def sample(
    logits: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor, masks: GrammarMasks | None = None
) -> Sampled:
    """logits: [num_rows, vocab_size] float32; tokens: the slots' [num_slots, max_sequence_len].

    Log probabilities are of the raw logits, before penalties and temperature.
    """
    needed = inputs.features
    is_plain = masks is None and not needed
    scores = logits if is_plain else _adjust(logits, inputs, tokens, masks)
    # For plain rows the op that computes log probabilities also chooses the token.
    token_ids = None if is_plain else _choose(scores, inputs)
    most = inputs.num_top
    found = ops.token_logprobs(logits, token_ids, most)
    if most:
        _report_named(found, logits, inputs)
    return Sampled(
        token_ids=found.token_ids,
        logprobs=found.chosen,
        finite=found.finite,
        possible=scores.amax(dim=-1) > -torch.inf if masks is not None or needed & EXCLUDING else None,
        top_ids=found.top_ids if most else None,
        top_logprobs=found.top_logprobs if most else None,
    )


def sample_decodes(
    logits: torch.Tensor,
    inputs: SamplingInput,
    decodes: Decodes,
    kept: SlotRows,
    masks: GrammarMasks | None = None,
) -> Sampled:
    """Does what `sample` does, for a step of decodes. Rows that are sampled apart cost the others nothing.

    The tokens are written behind those of their slots.
    """
    if inputs.apart is None:
        return Sampled(*_choose_plain(logits, inputs, decodes, kept))
    rows = to_device(decodes.apart, torch.int64, logits.device)
    if masks is not None and native.supports(logits) and _are_masked(inputs.apart, masks):
        return _choose_masked(logits, inputs, decodes, kept, native.Masks.of(rows, masks.bits))
    if len(decodes.apart) == decodes.num_decodes:
        apart = sample(logits, inputs.apart, kept.tokens, masks)
        keep(apart, inputs.apart, kept)
        return Sampled(apart.token_ids, apart.logprobs, apart.finite, apart=apart)
    chosen = _choose_plain(logits, inputs, decodes, kept)
    apart = sample(logits.index_select(0, rows), inputs.apart, kept.tokens, masks)
    for column, part in zip(chosen, (apart.token_ids, apart.logprobs, apart.finite), strict=True):
        column.index_copy_(0, rows, part)
    keep(apart, inputs.apart, kept)
    return Sampled(*chosen, apart=apart)


def keep(sampled: Sampled, inputs: SamplingInput, kept: SlotRows) -> None:
    """Write the tokens behind those of their slots."""
    kept.tokens.index_put_((inputs.slots, inputs.lengths), sampled.token_ids.int())


def _are_masked(inputs: SamplingInput, masks: GrammarMasks) -> bool:
    """Whether all of these rows have a mask, and need nothing else that a plain row does not."""
    return len(masks.rows) == inputs.num_rows and not (inputs.features & ADJUSTING or inputs.num_top)


def _choose_masked(
    logits: torch.Tensor, inputs: SamplingInput, decodes: Decodes, kept: SlotRows, masks: native.Masks
) -> Sampled:
    """Does what `_choose_plain` does, where all rows that are not plain have a mask."""
    draws = decodes.features != 0
    chosen = native.choose(logits, inputs.slots, inputs.lengths, kept, draws, masks)
    ids, logprobs, finite = (column.index_select(0, masks.rows) for column in chosen)
    return Sampled(*chosen, apart=Sampled(ids, logprobs, finite, masks.possible))


def _choose_plain(logits: torch.Tensor, inputs: SamplingInput, decodes: Decodes, kept: SlotRows) -> Chosen:
    draws = decodes.features != 0
    if native.supports(logits):
        return native.choose(logits, inputs.slots, inputs.lengths, kept, draws)
    token_ids = None
    if draws:
        params, seeds = (column.index_select(0, inputs.slots) for column in (kept.params, kept.seeds))
        token_ids = ops.draw(logits, _draw_params(params, seeds, inputs.lengths, logits.shape[1]))
    found = ops.token_logprobs(logits, token_ids, 0)
    kept.tokens.index_put_((inputs.slots, inputs.lengths), found.token_ids.int())
    return Chosen(found.token_ids, found.chosen, found.finite)


def choose(
    logits: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor, masks: GrammarMasks | None = None
) -> torch.Tensor:
    """Chooses tokens as `sample` does, and returns only these, [num_rows]."""
    return _choose(_adjust(logits, inputs, tokens, masks), inputs)


def score(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> Scored:
    """Log probabilities of given tokens. logits: [num_rows, vocab_size]; token_ids: [num_rows]."""
    found = ops.token_logprobs(logits, token_ids, num_top)
    ranks = (logits > logits.gather(1, token_ids.unsqueeze(1))).sum(dim=-1) + 1
    return Scored(found.chosen, found.top_ids, found.top_logprobs, ranks)


def _report_named(found: Logprobs, logits: torch.Tensor, inputs: SamplingInput) -> None:
    """Put the tokens that a row names in the place of its most likely ones."""
    entries = [
        (number, place, token)
        for number, row in enumerate(inputs.rows)
        for place, token in enumerate(row.params.logprob_ids)
    ]
    if not entries:
        return
    rows, places, ids = to_device(list(zip(*entries, strict=True)), torch.int64, logits.device)
    found.top_ids[rows, places] = ids.to(found.top_ids.dtype)
    found.top_logprobs[rows, places] = logits[rows, ids] - logits.logsumexp(dim=-1)[rows]


def _choose(scores: torch.Tensor, inputs: SamplingInput) -> torch.Tensor:
    if Feature.DRAW not in inputs.features:
        return ops.most_likely(scores)
    return ops.draw(scores, _draw_params(inputs.params, inputs.seeds, inputs.lengths, scores.shape[1]))


def _draw_params(
    params: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int
) -> DrawParams:
    columns = params.T.contiguous()
    return DrawParams(
        temperature=columns[Column.TEMPERATURE],
        top_k=columns[Column.TOP_K].clamp(max=vocab_size).int(),
        top_p=columns[Column.TOP_P],
        min_p=columns[Column.MIN_P],
        typical_p=columns[Column.TYPICAL_P],
        seeds=seeds,
        positions=positions,
    )


def _adjust(
    logits: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor, masks: GrammarMasks | None
) -> torch.Tensor:
    """Watermark, penalties, bias, suppression, exclusions, grammar. The logits stay as they are."""
    if masks is None and not inputs.features & ADJUSTING:
        return logits
    scores = logits.clone()
    _watermark(scores, inputs, tokens)
    _penalize(scores, inputs, tokens)
    _bias(scores, inputs)
    _exclude(scores, inputs, tokens)
    if masks is not None:
        rows = to_device(masks.rows, torch.int64, scores.device)
        ops.apply_bitmask(scores, rows, copy_to_device(masks.bits, scores.device))
    return scores


def _columns(inputs: SamplingInput) -> torch.Tensor:
    """[num_columns, num_rows]: each column contiguous, as the ops take it."""
    return inputs.params.T.contiguous()


def _watermark(scores: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> None:
    marked = inputs.having(Feature.WATERMARK)
    if not marked:
        return
    rows = to_device(marked, torch.int64, scores.device)
    previous = tokens[inputs.slots[rows], inputs.lengths[rows] - 1].long()
    params = inputs.params[rows]
    green = green_tokens(previous, params[:, Column.WATERMARK_GAMMA, None], scores.shape[1])
    moved = scores[rows] + green * params[:, Column.WATERMARK_DELTA, None]
    scores[rows] = moved.clamp_(-_LARGEST, _LARGEST)


def _penalize(scores: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> None:
    penalised = inputs.having(Feature.PENALTIES)
    if not penalised:
        return
    columns = _columns(inputs)
    params = PenaltyParams(
        tokens=tokens,
        slots=inputs.slots,
        lengths=inputs.lengths,
        prompt_lens=inputs.prompt_lens,
        repetition=columns[Column.REPETITION_PENALTY],
        frequency=columns[Column.FREQUENCY_PENALTY],
        presence=columns[Column.PRESENCE_PENALTY],
    )
    ops.penalize(scores, params, max_len=max(inputs.rows[number].position for number in penalised))


def _bias(scores: torch.Tensor, inputs: SamplingInput) -> None:
    entries = [
        (number, token, value)
        for number, row in enumerate(inputs.rows)
        for token, value in _biases(row.features, row.params).items()
    ]
    if not entries:
        return
    numbers, ids, values = zip(*entries, strict=True)
    places = to_device([numbers, ids], torch.int64, scores.device)
    ops.add_bias(scores, places[0], places[1], to_device(values, torch.float32, scores.device))


def _biases(features: Feature, params: SamplingParams) -> dict[int, float]:
    """The values added to the scores of one row, by token; minus infinity forbids a token."""
    biases: dict[int, float] = {}
    if Feature.BIAS in features:
        for token, value in zip(params.logit_bias_ids, params.logit_bias_values, strict=True):
            biases[token] = biases.get(token, 0.0) + value
    if Feature.SUPPRESSED in features:
        biases |= dict.fromkeys(params.suppressed_ids, -math.inf)
    return biases


def _exclude(scores: torch.Tensor, inputs: SamplingInput, tokens: torch.Tensor) -> None:
    if not inputs.features & EXCLUDING:
        return
    excluding = [(number, row.exclusions) for number, row in enumerate(inputs.rows) if row.exclusions]
    banned = [(number, found.banned) for number, found in excluding if found.banned is not None]
    if banned:
        numbers, tables = zip(*banned, strict=True)
        rows = to_device(numbers, torch.int64, scores.device)
        places = (inputs.slots, inputs.lengths, inputs.prompt_lens)
        ban(scores, rows, list(tables), Histories(tokens, *(place[rows] for place in places)))
    allowed = [(number, found.allowed) for number, found in excluding if found.allowed is not None]
    if allowed:
        numbers, masks = zip(*allowed, strict=True)
        ops.apply_bitmask(scores, to_device(numbers, torch.int64, scores.device), torch.stack(masks))
