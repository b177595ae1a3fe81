"""Attention in the shapes of an 8B Llama over a paged cache, and who else computes it."""

from collections.abc import Callable, Sequence
from functools import partial
from unittest import mock

import torch
from penstock_kernels import AttentionSpans, Scoring, backends, paged_attention
from penstock_kernels.base.attention_spans import AttentionArguments
from penstock_kernels.gpu.tiles import Tile
from penstock_server.engine.token_tree import ROOT, TokenTree
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.works import BF16, FP8, Call, Case, Sizes, Work, random

_TESTS = "test_attention.py"
# Who reads large blocks in another way.
_DESCRIPTORS = "tensor descriptors"
_OURS = ("auto", "triton", "native", "reference")
# Attention of others over our cache; whoever cannot be used here says why.
_BACKENDS = tuple(name for name in backends.NAMES if name not in _OURS)
# PyTorch's own over keys and values that lie in one piece, which is less work than pages.
_IN_ONE_PIECE = {
    "PyTorch's FlashAttention": SDPBackend.FLASH_ATTENTION,
    "cuDNN in PyTorch": SDPBackend.CUDNN_ATTENTION,
}
# Our own in other tiles, by the function that chooses one: rows, keys, warps and stages. None of them spills on sm_90
# with heads of 128. Two programs of the first fit on a multiprocessor of Hopper; those of decodes load further ahead.
_TILES = {
    "prefill_attention.prefill_tile": (Tile(64, 64, 4, 3), Tile(128, 32, 8, 5), Tile(64, 128, 4, 2)),
    "decode_attention.decode_tile": (Tile(16, 32, 4, 5), Tile(16, 64, 4, 4), Tile(16, 64, 8, 3)),
}
Lens = list[tuple[int, int]]
# The last token of a sequence and a tree of seven drafts, two after each: what each token sees, as kernels take it.
_TREE = (-1, *TokenTree(range(7), (ROOT, ROOT, 0, 0, 1, 1, 2)).seen)


def cases(sizes: Sizes) -> list[Case]:
    """Decodes, prompts, the 8-bit cache, and what is uneven."""
    (streams, context), (tokens, end), (longest, others, short) = sizes.usual, sizes.prompts[0], sizes.skewed
    found: list[tuple[str, Lens, torch.dtype]] = [
        (f"decode {number} x {length}", [(1, length)] * number, BF16) for number, length in sizes.decodes
    ]
    found += [
        (f"prefill {length} of {context}", [(length, context)], BF16) for length, context in sizes.prompts
    ]
    found += [
        (f"decode {streams} x {context}, fp8 cache", [(1, context)] * streams, FP8),
        (f"prefill {tokens} of {end}, fp8 cache", [(tokens, end)], FP8),
        (f"decode {longest} beside {others} x {short}", [(1, longest)] + [(1, short)] * others, BF16),
        (f"drafts of 8, {streams} x {context}", [(8, context)] * streams, BF16),
    ]
    in_tiles = {
        name: tuple(map(_name_of, tiles))
        for name, tiles in zip(
            (f"prefill {tokens} of {end}", f"decode {streams} x {context}"), _TILES.values(), strict=True
        )
    }
    # No other implementation takes trees.
    tree = Case(
        f"a tree of {len(_TREE)}, {streams} x {context}",
        partial(_work, sizes, [(len(_TREE), context)] * streams, BF16, _TREE),
        _TESTS,
    )
    large = [
        Case(
            f"prefill {length} of {context}, blocks of {sizes.large_block}",
            partial(_work, sizes, [(length, context)], BF16, block=sizes.large_block),
            _TESTS,
            (_DESCRIPTORS,),
        )
        for length, context in sizes.prompts
    ]
    return [
        *(
            Case(
                name,
                partial(_work, sizes, lens, dtype),
                _TESTS,
                (*_rival_names(lens, dtype), *in_tiles.get(name, ())),
            )
            for name, lens, dtype in found
        ),
        tree,
        *large,
    ]


def _work(
    sizes: Sizes, lens: Lens, cache_dtype: torch.dtype, tree: Sequence[int] = (), block: int | None = None
) -> Work:
    """Spans of (tokens, context), in blocks that lie anywhere in the cache. `tree`: what the tokens of each see."""
    block = block or sizes.block
    queries, contexts = (tuple(pair[number] for pair in lens) for number in range(2))
    tables, num_blocks = block_tables(contexts, block)
    seen = torch.tensor(list(tree) * len(lens), dtype=torch.int32, device=sizes.device) if tree else None
    spans = AttentionSpans(queries, contexts, tables.to(sizes.device), block, tree=seen)
    caches = [
        random(sizes, num_blocks, block, sizes.kv_heads, sizes.dim, dtype=cache_dtype) for _ in range(2)
    ]
    query = random(sizes, sum(queries), sizes.heads, sizes.dim)
    arguments = AttentionArguments(query, caches[0], caches[1], spans, Scoring(sizes.dim**-0.5))
    pairs = sum(q * c - q * (q - 1) // 2 for q, c in lens)
    num_bytes = 2 * sum(contexts) * sizes.kv_heads * sizes.dim * caches[0].element_size() + 2 * query.nbytes
    return Work(
        lambda: paged_attention(query, caches[0], caches[1], spans, arguments.scoring),
        num_bytes,
        4 * pairs * sizes.heads * sizes.dim,
        _rivals(sizes, lens, arguments),
    )


def block_tables(contexts: tuple[int, ...], block: int) -> tuple[torch.Tensor, int]:
    """A table of blocks that lie anywhere, for contexts of these lengths, and their number."""
    counts = [-(-context // block) for context in contexts]
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    order = torch.randperm(sum(counts), dtype=torch.int32)
    for span, blocks in enumerate(torch.split(order, counts)):
        tables[span, : len(blocks)] = blocks
    return tables, sum(counts)


def _rival_names(lens: Lens, cache_dtype: torch.dtype) -> tuple[str, ...]:
    (length, context), *others = set(lens)
    # Its causal mask is right only where a prompt has no cached tokens before it, and a decode needs none.
    is_even = not others and length in (1, context) and cache_dtype == BF16
    return (*_BACKENDS, *_IN_ONE_PIECE) if is_even else _BACKENDS


def _rivals(sizes: Sizes, lens: Lens, arguments: AttentionArguments) -> dict[str, Callable[[], Call]]:
    found: dict[str, Callable[[], Call]] = {
        name: partial(_backend, name, sizes, arguments) for name in _BACKENDS
    }
    found[_DESCRIPTORS] = partial(_by_descriptors, arguments)
    for chooser, tiles in _TILES.items():
        found |= {_name_of(tile): partial(_in_tiles, chooser, tile, arguments) for tile in tiles}
    return found | {name: partial(_in_one_piece, sizes, lens, kind) for name, kind in _IN_ONE_PIECE.items()}


def _backend(name: str, sizes: Sizes, arguments: AttentionArguments) -> Call:
    """Another implementation behind our seam; raises Unsupported."""
    dtype, cache_dtype = arguments.query.dtype, arguments.key_cache.dtype
    demand = backends.Demand(arguments.device, dtype, cache_dtype, sizes.heads, sizes.kv_heads, sizes.dim)
    attend = backends.choose(name, demand).attend
    return lambda: attend(arguments)


def _name_of(tile: Tile) -> str:
    return f"tiles of {tile.rows} x {tile.keys}, {tile.num_warps} warps, {tile.num_stages} stages"


def _in_tiles(chooser: str, tile: Tile, arguments: AttentionArguments) -> Call:
    """Our own, with another choice of the tile."""
    given = (arguments.query, arguments.key_cache, arguments.value_cache, arguments.spans, arguments.scoring)

    def attend() -> torch.Tensor:
        with mock.patch(f"penstock_kernels.gpu.{chooser}", return_value=tile):
            return paged_attention(*given)

    return attend


def _by_descriptors(arguments: AttentionArguments) -> Call:
    """Our own, with the cache read through tensor descriptors, as if that had been measured to be faster."""
    device = arguments.device
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (9, 0):
        raise backends.Unsupported("tensor descriptors need compute capability 9.0")
    from penstock_kernels.gpu import cache_descriptors
    from penstock_kernels.gpu.tiles import processor

    given = (arguments.query, arguments.key_cache, arguments.value_cache, arguments.spans, arguments.scoring)
    names = frozenset({processor(device).name})

    def attend() -> torch.Tensor:
        with mock.patch.object(cache_descriptors, "MEASURED_FASTER", names):
            return paged_attention(*given)

    return attend


def _in_one_piece(sizes: Sizes, lens: Lens, kind: SDPBackend) -> Call:
    length, context = lens[0]
    query = random(sizes, len(lens), sizes.heads, length, sizes.dim)
    key, value = (random(sizes, len(lens), sizes.kv_heads, context, sizes.dim) for _ in range(2))
    # A CPU has neither of them.
    kind = kind if sizes.device == "cuda" else SDPBackend.MATH

    def attend() -> torch.Tensor:
        with sdpa_kernel(kind):
            return scaled_dot_product_attention(query, key, value, is_causal=length > 1, enable_gqa=True)

    return attend
