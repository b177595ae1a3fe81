"""Attention over latents in the shapes of DeepSeek V3: of a rank of eight, which is bound by reading, and of a model on
one GPU, whose heads are so many that products bind it."""

from functools import partial

from penstock_kernels import AttentionSpans, LatentArguments, latent_attention, reference

from benchmarks.gpu.attention_works import block_tables
from benchmarks.gpu.works import Case, Sizes, Work, random

_TESTS = "test_latent_attention.py"
# Op by op, as it was before the kernel.
_RIVALS = ("PyTorch",)


def cases(sizes: Sizes) -> list[Case]:
    """Decodes, then drafts and a piece of a prompt."""
    streams, context = sizes.usual
    few, many = sizes.latents.heads
    found = [(few, 1, number, length) for number, length in sizes.decodes]
    found += [(many, 1, streams, context), (few, 8, streams, context), (few, min(64, context), 1, context)]
    return [
        Case(
            f"latents, {heads} heads, {tokens} of {length}, {number} x",
            partial(_work, sizes, heads, tokens, number, length),
            _TESTS,
            _RIVALS,
        )
        for heads, tokens, number, length in found
    ]


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
