"""The twins of the sampling ops, in plain PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from penstock_kernels.sampling import DrawParams, PenaltyParams

# Far beyond any logit, far below overflow when two are added.
_LARGEST = 1e37
_BITS = 40


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)


def gumbel(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Standard Gumbel noise [num_rows, vocab_size], from SplitMix64 over a counter; wrapping int64 is its uint64."""
    keys = _mix(_mix(seeds) + positions * _GOLDEN)
    counters = torch.arange(1, vocab_size + 1, device=seeds.device) * _GOLDEN
    bits = _mix(keys.unsqueeze(1) + counters)
    small = (_shift_right(bits, 64 - _BITS).float() + 0.5).mul_(2.0**-_BITS).clamp_(max=1 - 2.0**-24)
    return small.neg_().log1p_().neg_().log_().neg_()


def _mix(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _shift_right(x, 30)) * _MULTIPLIER_1
    x = (x ^ _shift_right(x, 27)) * _MULTIPLIER_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def draw(scores: torch.Tensor, params: DrawParams) -> torch.Tensor:
    token_ids = scores.argmax(dim=-1)
    drawn = (params.temperature > 0) & (scores.amax(dim=-1) > -torch.inf)
    if not bool(drawn.any()):
        return token_ids
    temperature = torch.where(drawn, params.temperature, 1.0)
    scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature.unsqueeze(1)
    scaled = truncate(scaled, params)
    noisy = scaled + gumbel(params.seeds, params.positions, scores.shape[1])
    return torch.where(drawn, noisy.argmax(dim=-1), token_ids)


def truncate(scaled: torch.Tensor, params: DrawParams) -> torch.Tensor:
    """-inf for what top-k, top-p, min-p and typical-p cut off. The largest of each row of `scaled` is 0."""
    vocab_size = scaled.shape[1]
    off = (params.top_k <= 0) | (params.top_k >= vocab_size)
    last = torch.where(off, vocab_size, params.top_k).long().unsqueeze(1) - 1
    scaled = _keep(scaled, scaled >= scaled.sort(dim=-1, descending=True).values.gather(1, last))
    values = scaled.sort(dim=-1, descending=True).values
    enough = _first_reaching(values.softmax(-1), params.top_p)
    scaled = _keep(scaled, (scaled >= values.gather(1, enough)) | (params.top_p >= 1).unsqueeze(1))
    scaled = _keep(scaled, scaled >= params.min_p.log().unsqueeze(1))
    logprobs = scaled.log_softmax(dim=-1)
    probabilities = logprobs.exp()
    entropy = -(probabilities * logprobs).nansum(dim=-1, keepdim=True)
    surprise = (-logprobs - entropy).abs()
    ordered, order = surprise.sort(dim=-1, stable=True)
    enough = _first_reaching(probabilities.gather(1, order), params.typical_p)
    return _keep(scaled, (surprise <= ordered.gather(1, enough)) | (params.typical_p >= 1).unsqueeze(1))


def _first_reaching(probabilities: torch.Tensor, mass: torch.Tensor) -> torch.Tensor:
    """[num_rows, 1]: how many ordered tokens come before the one that reaches the mass."""
    missing = probabilities.cumsum(dim=-1) < mass.unsqueeze(1)
    return missing.sum(dim=-1, keepdim=True).clamp(max=probabilities.shape[1] - 1)


def _keep(scores: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~kept, -torch.inf)


def penalize(scores: torch.Tensor, params: PenaltyParams, max_len: int) -> None:
    history = params.tokens[params.slots, :max_len].long()
    positions = torch.arange(max_len, device=scores.device)
    known = positions < params.lengths.unsqueeze(1)
    output = known & (positions >= params.prompt_lens.unsqueeze(1))
    history = history.masked_fill(~known, 0)  # beyond its length a row holds another sequence's tokens
    seen = torch.zeros_like(scores).scatter_add_(1, history, known.float()) > 0
    counts = torch.zeros_like(scores).scatter_add_(1, history, output.float())
    repetition = params.repetition.unsqueeze(1)
    repeated = torch.where(scores > 0, scores / repetition, scores * repetition)
    penalised = torch.where(seen & (repetition != 1), repeated, scores)
    penalised = penalised - counts * params.frequency.unsqueeze(1)
    penalised = penalised - (counts > 0) * params.presence.unsqueeze(1)
    scores.copy_(penalised.clamp_(-_LARGEST, _LARGEST))


def add_bias(scores: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    biased = scores[rows, ids] + values
    scores[rows, ids] = torch.where(biased == -torch.inf, biased, biased.clamp(-_LARGEST, _LARGEST))


def apply_bitmask(scores: torch.Tensor, rows: torch.Tensor, bits: torch.Tensor) -> None:
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = ((bits.unsqueeze(2) >> shifts) & 1).flatten(1)[:, : scores.shape[1]].bool()
    missing = scores.shape[1] - allowed.shape[1]
    allowed = torch.nn.functional.pad(allowed, (0, missing)) if missing > 0 else allowed
    scores[rows] = scores[rows].masked_fill(~allowed, -torch.inf)


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor, num_top: int) -> tuple[torch.Tensor, ...]:
    normalizers = logits.logsumexp(dim=-1)
    chosen = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1) - normalizers
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return (
        chosen,
        logits.isfinite().all(dim=-1),
        ids[:, :num_top],
        values[:, :num_top] - normalizers.unsqueeze(1),
    )
