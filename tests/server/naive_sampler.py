"""The sampler again, one row at a time in plain Python and float64: what the batched one must equal."""

import math

from penstock_server.engine.sampling_params import SamplingParams

_MASK = 2**64 - 1


def adjusted(
    logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[float]:
    """Penalties, bias, suppression and exclusions."""
    scores = list(logits)
    for token in set(prompt + output):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    for token in set(output):
        scores[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    for token, bias in zip(params.logit_bias_ids, params.logit_bias_values, strict=True):
        scores[token] += bias
    if len(output) < params.min_new_tokens:
        for token in params.suppressed_ids:
            scores[token] = -math.inf
    for token in excluded(params, output, len(scores)):
        scores[token] = -math.inf
    return scores


def excluded(params: SamplingParams, output: list[int], vocab_size: int) -> set[int]:
    """Tokens that are not allowed, or would complete a banned sequence."""
    found, start = set(), 0
    for length in params.banned_lens:
        *before, last = params.banned_ids[start : start + length]
        start += length
        if before == output[len(output) - len(before) :]:
            found.add(last)
    if params.allowed_mask:
        bits = int.from_bytes(params.allowed_mask, "little")
        found |= {token for token in range(vocab_size) if not bits >> token & 1}
    return found


def kept(scores: list[float], params: SamplingParams) -> list[float]:
    """Temperature and truncation: what is cut off is -inf."""
    scores = [score / params.temperature for score in scores]
    if params.top_k:
        limit = sorted(scores, reverse=True)[min(params.top_k, len(scores)) - 1]
        scores = [score if score >= limit else -math.inf for score in scores]
    if params.top_p < 1:
        scores = _top_p(scores, params.top_p)
    if params.min_p:
        limit = max(scores) + math.log(params.min_p)
        scores = [score if score >= limit else -math.inf for score in scores]
    return _typical(scores, params.typical_p) if params.typical_p < 1 else scores


def probabilities(scores: list[float]) -> list[float]:
    """Softmax."""
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def _top_p(scores: list[float], top_p: float) -> list[float]:
    total, shares = 0.0, probabilities(scores)
    allowed = set()
    for token in sorted(range(len(scores)), key=lambda token: -scores[token]):
        allowed.add(token)
        total += shares[token]
        if total >= top_p:
            break
    return [score if token in allowed else -math.inf for token, score in enumerate(scores)]


def _typical(scores: list[float], mass: float) -> list[float]:
    shares = probabilities(scores)
    entropy = -sum(share * math.log(share) for share in shares if share > 0)
    surprise = [abs(-math.log(share) - entropy) if share > 0 else math.inf for share in shares]
    total, allowed = 0.0, set()
    for token in sorted(range(len(scores)), key=lambda token: surprise[token]):
        allowed.add(token)
        total += shares[token]
        if total >= mass:
            break
    return [score if token in allowed else -math.inf for token, score in enumerate(scores)]


def gumbel(seed: int, position: int, token: int) -> float:
    """The noise of one token, with Python's own big integers."""
    golden = 0x9E3779B97F4A7C15
    key = _mix((_mix(seed) + position * golden) & _MASK)
    small = ((_mix((key + (token + 1) * golden) & _MASK) >> 24) + 0.5) / 2**40
    return -math.log(-math.log1p(-min(small, 1 - 2**-24)))


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
