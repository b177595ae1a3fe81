"""Attention over latents in C: in the space of the latents, which all heads share, or with keys and values that are
made of them for each head, where a long span takes fewer operations so."""

from collections.abc import Iterator
from functools import partial

import torch

from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    AttentionSpans,
    DecodeSpans,
    LatentArguments,
    Scoring,
)
from penstock_kernels.native import attention
from penstock_kernels.native.grouped_linear import grouped_linear
from penstock_kernels.native.library import DTYPES
from penstock_kernels.native.linear import can_multiply, multiply
from penstock_kernels.reference.latent_attention import latent_attention_beside

# Query heads that read the same keys at a time: at least so many, so that a key is not loaded for each of them.
_FEWEST_HEADS, _MOST_HEADS = 4, 32
# Pieces of work for each thread.
_PIECES = 3
# Numbers that are made at a time: heads come in parts where there are more.
_MOST_NUMBERS = 2**26
# Keys and values are copied once more than the operations say.
_WORTH_EXPANDING = 1.25


def can_attend(dtype: torch.dtype, rank: int, rope_dim: int, nope_dim: int) -> bool:
    """Whether it is compiled, for such latents and queries."""
    return (
        dtype in DTYPES
        and can_multiply(nope_dim)
        and can_multiply(rank)
        and attention.can_hold(rank + rope_dim, rank, 1)
    )


def supports(arguments: LatentArguments) -> bool:
    """Whether `latent_attention` can take these."""
    rank, nope_dim = arguments.key_up.shape[1:]
    spans = arguments.spans
    is_short = not isinstance(spans, DecodeSpans) or spans.num_prompts == 0
    return is_short and can_attend(arguments.query.dtype, rank, arguments.cache.shape[3] - rank, nope_dim)


def latent_attention(arguments: LatentArguments, max_lanes: int = 0) -> torch.Tensor:
    """The op in C. The bits of a row of a short span do not depend on what else is computed. `max_lanes`: see
    `paged_attention`.
    """
    spans = arguments.spans
    absorbed = partial(_absorbed, max_lanes=max_lanes)
    if isinstance(spans, DecodeSpans):
        return absorbed(arguments)
    lens = zip(spans.query_lens, spans.context_lens, strict=True)
    long = [span for span, sizes in enumerate(lens) if is_worth_expanding(arguments, *sizes)]
    return latent_attention_beside(arguments, long, absorbed, partial(expanded, max_lanes=max_lanes))


def is_worth_expanding(arguments: LatentArguments, query_len: int, context_len: int) -> bool:
    """Whether a span takes fewer operations with keys and values, of which all are made again for every chunk."""
    (rank, nope_dim), value_dim = arguments.key_up.shape[1:], arguments.value_up.shape[1]
    rope_dim = arguments.query.shape[2] - nope_dim
    if query_len <= MAX_DECODE_LEN or not attention.can_hold(nope_dim + rope_dim, value_dim, 1):
        return False
    pairs = query_len * (context_len - query_len // 2)
    of_matrices = (nope_dim + value_dim) * rank
    as_latents = query_len * of_matrices + pairs * (2 * rank + rope_dim)
    as_heads = context_len * of_matrices + pairs * (nope_dim + rope_dim + value_dim)
    return as_heads * _WORTH_EXPANDING < as_latents


def _absorbed(arguments: LatentArguments, max_lanes: int = 0) -> torch.Tensor:
    """Queries go down to the latents by a product for each head, the heads are queries of one key head whose values are
    the beginning of its keys, and what they find goes up by another product for each head.
    """
    num_tokens, num_heads = arguments.query.shape[:2]
    numbers = num_tokens * (arguments.cache.shape[3] + arguments.key_up.shape[1])
    parts = [_absorbed_part(arguments, heads, max_lanes) for heads in _head_parts(num_heads, numbers)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _absorbed_part(arguments: LatentArguments, heads: slice, max_lanes: int) -> torch.Tensor:
    query, cache, spans = arguments.query[:, heads], arguments.cache, arguments.spans
    key_up, value_up = arguments.key_up[heads], arguments.value_up[heads]
    (num_tokens, num_heads), (rank, nope_dim) = query.shape[:2], key_up.shape[1:]
    absorbed = torch.empty(num_tokens, num_heads, cache.shape[3], dtype=query.dtype)
    down = absorbed[..., :rank].flatten(0, 1)
    grouped_linear(query[..., :nope_dim].flatten(0, 1), None, key_up, None, max_lanes, down)
    absorbed[..., rank:].copy_(query[..., nope_dim:])
    num_pieces = _num_pieces(num_heads, len(spans.context_lens))
    key = cache.expand(-1, -1, num_pieces, -1)
    scoring = Scoring(arguments.scale)
    found = attention.attend(absorbed, key, key[..., :rank], spans, scoring, max_lanes)
    up = grouped_linear(found.flatten(0, 1), None, value_up, None, max_lanes)
    return up.view(num_tokens, num_heads, -1)


def _num_pieces(num_heads: int, num_spans: int) -> int:
    """In how many pieces the heads of a span are computed: enough for all threads, but each with some heads."""
    wanted = -(-_PIECES * torch.get_num_threads() // max(num_spans, 1))
    most = max(num_heads // _FEWEST_HEADS, 1)
    fewest = -(-num_heads // _MOST_HEADS)
    possible = [count for count in range(1, num_heads + 1) if num_heads % count == 0 and count >= fewest]
    within = [count for count in possible if count <= most] or possible[:1]
    return next((count for count in within if count >= wanted), within[-1])


def expanded(arguments: LatentArguments, max_lanes: int = 0) -> torch.Tensor:
    """Attention over expanded latents, span by span; the host must know the lengths of the spans."""
    spans, (num_tokens, num_heads) = arguments.spans, arguments.query.shape[:2]
    assert isinstance(spans, AttentionSpans), "the host knows which are worth it"
    value_dim = arguments.value_up.shape[1]
    output = torch.empty(num_tokens, num_heads, value_dim, dtype=arguments.query.dtype)
    for span, first in enumerate(spans.query_starts[:-1]):
        rows = slice(first, first + spans.query_lens[span])
        latents = _latents_of(arguments.cache, spans, span)
        numbers = len(latents) * (arguments.query.shape[2] + 2 * value_dim)
        for heads in _head_parts(num_heads, numbers):
            output[rows, heads] = _expanded_part(arguments, rows, heads, latents, max_lanes)
    return output


def _latents_of(cache: torch.Tensor, spans: AttentionSpans, span: int) -> torch.Tensor:
    """[context_len, rank + rope_dim]: those of one span."""
    context_len = spans.context_lens[span]
    blocks = spans.block_tables[span, : -(-context_len // spans.block_size)]
    return cache.index_select(0, blocks).flatten(0, 2)[:context_len]


def _expanded_part(
    arguments: LatentArguments, rows: slice, heads: slice, latents: torch.Tensor, max_lanes: int
) -> torch.Tensor:
    """Queries of one span and of some heads, over keys and values that lie in one block."""
    query, key_up, value_up = (
        arguments.query[rows, heads],
        arguments.key_up[heads],
        arguments.value_up[heads],
    )
    num_heads, rank, nope_dim = key_up.shape
    made = torch.cat((key_up.transpose(1, 2), value_up), dim=1).flatten(0, 1)
    both = multiply(latents[:, :rank], (made,), None, max_lanes).view(1, len(latents), num_heads, -1)
    key = torch.empty(*both.shape[:3], query.shape[2], dtype=query.dtype)
    key[..., :nope_dim] = both[..., :nope_dim]
    key[..., nope_dim:] = latents[:, rank:].unsqueeze(1)
    table = torch.zeros(1, 1, dtype=torch.int32)
    alone = AttentionSpans((len(query),), (len(latents),), table, len(latents))
    value, scoring = both[..., nope_dim:], Scoring(arguments.scale)
    return attention.attend(query, key, value, alone, scoring, max_lanes)


def _head_parts(num_heads: int, numbers: int) -> Iterator[slice]:
    """Heads of which each needs so many numbers, some at a time."""
    step = max(min(_MOST_NUMBERS // max(numbers, 1), num_heads), 1)
    return (slice(first, min(first + step, num_heads)) for first in range(0, num_heads, step))
