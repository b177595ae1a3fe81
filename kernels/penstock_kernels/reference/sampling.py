"""Sampling: every stage computes the rows that need it and no others."""

from collections.abc import Callable

import torch

from penstock_kernels.base.results import Logprobs
from penstock_kernels.base.sampling_params import DrawParams, PenaltyParams
from penstock_kernels.reference.noise import gumbel, gumbel_of

# Far beyond any logit, far below overflow when two are added.
_LARGEST = 1e37
# So many of the most likely tokens nearly always reach top_p. Of a vocabulary of 152,000, to sort these takes 0.6 ms a
# row on a CPU, to sort all 12.
_LIKELY_ENOUGH = 4096
# In rows that keep at most one in so many tokens, only the kept ones get noise: noise takes 15 times as long as a sort.
_FEW = 16


def draw(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    token_ids = scores.argmax(dim=-1)
    largest = scores.gather(1, token_ids.unsqueeze(1)).squeeze(1)
    rows = _rows_where((params.temperature > 0) & (largest > -torch.inf))
    if len(rows):
        chosen = _only(params, rows)
        # From here the largest score of a row is 0: the division cannot overflow upwards.
        scaled = (_some(scores, rows) - largest[rows].unsqueeze(1)) / chosen.temperature.unsqueeze(1)
        token_ids[rows] = _noisiest(truncate(scaled, chosen), chosen)
    return token_ids


def truncate(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Sets what top-k, top-p, min-p and typical-p cut off to -inf, in place. The largest score of a row is 0."""
    _narrow(_top_k, (params.top_k > 0) & (params.top_k < scaled.shape[1]), scaled, params)
    _narrow(_top_p, params.top_p < 1, scaled, params)
    _narrow(_min_p, params.min_p > 0, scaled, params)
    _narrow(_typical_p, params.typical_p < 1, scaled, params)
    return scaled


Stage = Callable[[torch.Tensor, DrawParams], torch.Tensor]


def _narrow(stage: Stage, wanted: torch.Tensor, scaled: torch.Tensor, params: DrawParams) -> None:
    """Sets what a stage does not keep to -inf, in the rows that want the stage. The other rows keep their bits."""
    rows = _rows_where(wanted)
    if len(rows) == len(scaled):
        scaled.masked_fill_(~stage(scaled, params), -torch.inf)
    elif len(rows):
        part = scaled[rows]
        scaled[rows] = part.masked_fill_(~stage(part, _only(params, rows)), -torch.inf)


def _top_k(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    values = scaled.topk(int(params.top_k.max()), dim=-1).values
    return scaled >= values.gather(1, params.top_k.long().unsqueeze(1) - 1)


def _top_p(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    top_p, vocab_size = params.top_p.unsqueeze(1), scaled.shape[1]
    normalizers = scaled.logsumexp(dim=-1, keepdim=True)
    for count in (min(_LIKELY_ENOUGH, vocab_size), vocab_size):
        values = scaled.topk(count, dim=-1).values
        mass = (values - normalizers).exp_().cumsum(dim=-1)
        if count == vocab_size or bool((mass[:, -1:] >= top_p).all()):
            break
    return scaled >= values.gather(1, _first_reaching(mass, top_p))


def _min_p(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    return scaled >= params.min_p.log().unsqueeze(1)


def _typical_p(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    logprobs = scaled.log_softmax(dim=-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).nansum(dim=-1, keepdim=True)  # 0 * -inf of what was cut off before
    surprise = (-logprobs - entropy).abs()
    ordered, order = surprise.sort(dim=-1, stable=True)
    mass = probabilities.gather(1, order).cumsum(dim=-1)
    return surprise <= ordered.gather(1, _first_reaching(mass, params.typical_p.unsqueeze(1)))


def _first_reaching(mass: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """[num_rows, 1]: the first place whose running mass reaches the target. It is kept, too."""
    return (mass < target).sum(dim=-1, keepdim=True).clamp(max=mass.shape[1] - 1)


def _noisiest(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """The largest of score + Gumbel noise, which draws from the softmax."""
    token_ids = torch.empty(len(scaled), dtype=torch.int64, device=scaled.device)
    num_kept, few = (scaled > -torch.inf).sum(dim=-1), scaled.shape[1] // _FEW
    for wanted, choose in ((num_kept <= few, _noisiest_of_few), (num_kept > few, _noisiest_of_many)):
        rows = _rows_where(wanted)
        if len(rows):
            token_ids[rows] = choose(_some(scaled, rows), _only(params, rows))
    return token_ids


def _noisiest_of_many(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    return (scaled + gumbel(params.seeds, params.positions, scaled.shape[1])).argmax(dim=-1)


def _noisiest_of_few(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """Only the kept tokens get noise."""
    most = int((scaled > -torch.inf).sum(dim=-1).max())
    values, ids = scaled.topk(max(most, 1), dim=-1)  # of a row of NaN none is kept
    noisy = values + gumbel_of(params.seeds, params.positions, ids)
    return ids.gather(1, noisy.argmax(dim=-1, keepdim=True)).squeeze(1)


def _rows_where(wanted: torch.Tensor) -> torch.Tensor:
    return wanted.nonzero().squeeze(1)


def _some(scores: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return scores if len(rows) == len(scores) else scores[rows]


def _only(params: DrawParams, rows: torch.Tensor) -> DrawParams:
    return params if len(rows) == len(params.seeds) else type(params)(*(column[rows] for column in params))


def most_likely(scores: torch.Tensor) -> torch.Tensor:
    return scores.argmax(dim=-1)


def penalize(scores: torch.Tensor, params: PenaltyParams, max_len: int) -> None:
    """Reads and writes only the scores of tokens that the rows have."""
    is_on = (params.repetition != 1) | (params.frequency != 0) | (params.presence != 0)
    rows = _rows_where(is_on & (params.lengths > 0))
    if len(rows) == 0:
        return
    tokens, slots, *columns = params
    lengths, prompt_lens, repetition, frequency, presence = (column[rows].unsqueeze(1) for column in columns)
    positions = torch.arange(max_len, device=scores.device)
    known = positions < lengths
    # Beyond its length a row holds tokens of another sequence. Its own first token replaces them.
    history = tokens[slots[rows], :max_len].long()
    history = torch.where(known, history, history[:, :1])
    counts = torch.zeros(len(rows), scores.shape[1], device=scores.device)
    counts.scatter_add_(1, history, (known & (positions >= prompt_lens)).float())
    counts, places = counts.gather(1, history), (rows.unsqueeze(1), history)
    found = scores[places]
    repeated = torch.where(found > 0, found / repetition, found * repetition).clamp_(-_LARGEST, _LARGEST)
    penalised = torch.where(repetition != 1, repeated, found)
    penalised = penalised - counts * frequency - (counts > 0) * presence
    scores[places] = penalised.clamp_(-_LARGEST, _LARGEST)


def add_bias(scores: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    biased = scores[rows, ids] + values
    scores[rows, ids] = torch.where(biased == -torch.inf, biased, biased.clamp(-_LARGEST, _LARGEST))


def apply_bitmask(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits.unsqueeze(2) >> shifts) & 1).flatten(1)[:, : scores.shape[1]].bool()
    missing = scores.shape[1] - allowed.shape[1]
    allowed = torch.nn.functional.pad(allowed, (0, missing)) if missing > 0 else allowed
    scores[rows] = scores[rows].masked_fill(~allowed, -torch.inf)


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor | None, num_top: int) -> Logprobs:
    if token_ids is None:
        token_ids = logits.argmax(dim=-1)
    normalizers = logits.logsumexp(dim=-1)
    chosen = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) - normalizers
    values, ids = _top(logits, num_top)
    return Logprobs(token_ids, chosen, _are_finite(logits), ids, values - normalizers.unsqueeze(1))


def _are_finite(logits: torch.Tensor) -> torch.Tensor:
    """One pass: with a NaN or an infinity the sum is not finite. A row whose sum only overflowed is checked again."""
    finite = logits.sum(dim=-1).isfinite()
    rows = _rows_where(~finite)
    if len(rows):
        finite[rows] = logits[rows].isfinite().all(dim=-1)
    return finite


def _top(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest and their ids; of equal ones the smallest id is first, which topk does not promise."""
    values, ids = logits.topk(min(count + 1, logits.shape[1]) if count else 0, dim=-1)
    if 0 < count < values.shape[1]:
        last, ids = values[:, count - 1], ids[:, :count]
        for row in _rows_where(last == values[:, count]).tolist():
            ids[row] = _first_likely(logits[row], last[row], count)
    ids = ids.sort(dim=-1).values
    values, order = logits.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)


def _first_likely(logits: torch.Tensor, last: torch.Tensor, count: int) -> torch.Tensor:
    """The ids of one row in which more than `count` tokens reach the value of the last."""
    ids = _rows_where(logits >= last)
    return ids[logits[ids].sort(descending=True, stable=True).indices[:count]]
