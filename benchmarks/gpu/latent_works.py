"""Attention over latents in the shapes of DeepSeek V3: of a rank of eight, which is bound by reading, and of a model on
one GPU, whose heads are so many that products bind it."""

from functools import partial

import torch
from penstock_kernels import AttentionSpans, LatentArguments, choose_positions, latent_attention, reference
from penstock_kernels.base.seen_rows import seen_rows

from benchmarks.gpu.attention_works import block_tables
from benchmarks.gpu.works import Case, Sizes, Work, random

_TESTS, _INDEX_TESTS = "test_latent_attention.py", "test_choose_positions.py"
# Op by op, as it was before the kernel.
_RIVALS = ("PyTorch",)


def cases(sizes: Sizes) -> list[Case]:
    """Decodes, then drafts and a piece of a prompt."""
    streams, context = sizes.usual
    few, many = sizes.latents.heads
    found = [(few, 1, number, length) for number, length in sizes.decodes]
    found += [(many, 1, streams, context), (few, 8, streams, context), (few, min(64, context), 1, context)]
    return [
        *(
            Case(f"index, {number} x {length}", partial(_index, sizes, number, length), _INDEX_TESTS, _RIVALS)
            for number, length in sizes.decodes
        ),
        *(
            Case(
                f"latents, {heads} heads, {tokens} of {length}, {number} x",
                partial(_work, sizes, heads, tokens, number, length),
                _TESTS,
                _RIVALS,
            )
            for heads, tokens, number, length in found
        ),
    ]


def _index(sizes: Sizes, number: int, context: int) -> Work:
    """Decodes of DeepSeek V3.2, whose index has 64 heads of 128 numbers: a quarter of the positions, or 2,048."""
    tables, num_blocks = block_tables((context,) * number, sizes.block)
    spans = AttentionSpans((1,) * number, (context,) * number, tables.to(sizes.device), sizes.block)
    query, cache = random(sizes, number, 64, 128), random(sizes, num_blocks, sizes.block, 1, 128)
    weights, top_k = torch.rand(number, 64, device=sizes.device), min(2048, max(context // 4, 1))
    rows = seen_rows(spans, number)
    chosen = torch.empty(number, top_k, dtype=torch.int32, device=sizes.device)
    given = query, weights, cache, spans.block_tables, rows, context, chosen
    return Work(
        lambda: choose_positions(query, weights, cache, spans, top_k),
        2 * number * context * 128 + query.nbytes,
        2 * number * context * 64 * 128,
        {"PyTorch": lambda: partial(reference.choose_positions, *given)},
    )


def _work(sizes: Sizes, heads: int, tokens: int, number: int, context: int) -> Work:
    """So many spans; the products down to the latents and up to values are part of it."""
    latents = sizes.latents
    width, nope, value = latents.rank + latents.rope, latents.nope, latents.value
    tables, num_blocks = block_tables((context,) * number, sizes.block)
    spans = AttentionSpans((tokens,) * number, (context,) * number, tables.to(sizes.device), sizes.block)
    query = random(sizes, tokens * number, heads, nope + latents.rope)
    cache = random(sizes, num_blocks, sizes.block, 1, width)
    ups = random(sizes, heads, latents.rank, nope), random(sizes, heads, value, latents.rank)
    pairs = number * (tokens * context - tokens * (tokens - 1) // 2)
    num_bytes = 2 * number * context * width + query.nbytes + sum(up.nbytes for up in ups)
    products = len(query) * latents.rank * (nope + value)
    given = LatentArguments(query, cache, *ups, spans, width**-0.5)
    return Work(
        lambda: latent_attention(query, cache, *ups, spans, given.scale),
        num_bytes + 2 * len(query) * heads * value,
        2 * heads * (pairs * (width + latents.rank) + products),
        {"PyTorch": lambda: partial(reference.latent_attention, given)},
    )
