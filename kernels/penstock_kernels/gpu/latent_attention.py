"""Attention over latents: short spans by a kernel in the space of the latents, long ones by the reference, which makes
keys and values of their contexts. In a graph, where the host knows no lengths, the kernel computes all."""

from dataclasses import replace

import torch

from penstock_kernels import reference
from penstock_kernels.base.attention_spans import (
    MAX_DECODE_LEN,
    AttentionArguments,
    DecodeSpans,
    LatentArguments,
    Reach,
    Scoring,
)
from penstock_kernels.gpu.attend_latents import attend_latents, attend_prompts, prompt_tile, tile_of
from penstock_kernels.gpu.attention_call import AttentionCall
from penstock_kernels.gpu.attention_work import Cut, step_work
from penstock_kernels.gpu.tiles import latent_tile, processor
from penstock_kernels.gpu.work_limits import most_part_tokens, parts_bytes, resident_latent_items
from penstock_kernels.reference.latent_attention import latent_attention_beside

# Longer spans take fewer operations with keys and values: for each head and position of the context DeepSeek's take
# 262,144 to be made and 640 for each query, in the place of 2,176 for each query. Equal at 171 queries. Unmeasured.
_MOST_ABSORBED = 128
# In larger steps that is done with decodes alone: queries and what they find take `rank` numbers a head and token each.
_MOST_TOKENS = 2048


def latent_attention(arguments: LatentArguments) -> torch.Tensor:
    spans = arguments.spans
    if isinstance(spans, DecodeSpans):
        return _in_parts(arguments, spans) if len(arguments.query) > _MOST_TOKENS else _absorbed(arguments)
    longest = _MOST_ABSORBED if len(arguments.query) <= _MOST_TOKENS else MAX_DECODE_LEN
    long = [span for span, length in enumerate(spans.query_lens) if length > longest]
    return latent_attention_beside(arguments, long, _absorbed, reference.latent_attention)


def _in_parts(arguments: LatentArguments, spans: DecodeSpans) -> torch.Tensor:
    """Attends for some queries at a time, if each is a span of its own: those of prompts for which an index chooses."""
    if spans.max_query_len > 1 or len(spans.context_lens) != len(arguments.query):
        return _absorbed(arguments)
    parts = []
    for first in range(0, len(arguments.query), _MOST_TOKENS):
        rows = slice(first, first + _MOST_TOKENS)
        query, lens = arguments.query[rows], spans.context_lens[rows]
        own = replace(
            spans, query_starts=spans.query_starts[: len(query) + 1], context_lens=lens,
            block_tables=spans.block_tables[rows], _shared={},
        )  # fmt: skip
        parts.append(_absorbed(replace(arguments, query=query, spans=own)))
    return torch.cat(parts)


def _absorbed(arguments: LatentArguments) -> torch.Tensor:
    """Queries go down to the latents by a product for each head, and what they find there up by another."""
    query, key_up, value_up = arguments.query, arguments.key_up, arguments.value_up
    (num_tokens, num_heads), (rank, nope_dim) = query.shape[:2], key_up.shape[1:]
    shapes = (num_tokens, num_heads, rank), (num_tokens, num_heads, value_up.shape[1])
    down, output = (torch.empty(shape, dtype=query.dtype, device=query.device) for shape in shapes)
    if output.numel() == 0:
        return output
    torch.bmm(query[..., :nope_dim].transpose(0, 1), key_up.transpose(1, 2), out=down.transpose(0, 1))
    found = _attend(arguments, down, query[..., nope_dim:])
    torch.bmm(found.transpose(0, 1), value_up.transpose(1, 2), out=output.transpose(0, 1))
    return output


def _attend(arguments: LatentArguments, down: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
    """[num_tokens, num_heads, rank]: sums of latents."""
    spans, cache, num_heads = arguments.spans, arguments.cache, down.shape[1]
    given = AttentionArguments(down, cache, cache, spans, Scoring(arguments.scale))
    resident = resident_latent_items(processor(down.device), tile_of(down, 1), num_heads)
    cut = Cut(num_heads, prompt_tile(down).rows, Reach(), resident)
    layout, decodes = step_work(spans, len(down), cut)
    call = AttentionCall(given, layout.query_starts, layout.context_lens, torch.empty_like(down))
    for work in decodes:
        attend_latents(call, rotated, work)
    if len(layout.tiles):
        attend_prompts(call, rotated, layout.tiles)
    return call.out


def latent_parts_bytes(
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    rank: int,
    num_spans: int,
    num_tokens: int,
    max_context_len: int,
) -> int:
    """See the public function."""
    chip = processor(device)
    tile = latent_tile(num_heads, dtype.itemsize, chip.shared_bytes)
    resident = resident_latent_items(chip, tile, num_heads)
    part_tokens = most_part_tokens(num_spans, num_tokens, max_context_len, resident, unbatched=False)
    queries_bytes = 2 * max(num_tokens, _MOST_TOKENS) * num_heads * rank * dtype.itemsize
    return parts_bytes(part_tokens, num_heads, rank) + queries_bytes
