"""A step of attention over a pool in which everything unused is NaN, and a dense computation of it in float64."""

from dataclasses import dataclass

import torch
from closeness import assert_close
from penstock_kernels import (
    AttentionArguments,
    AttentionSpans,
    DecodeSpans,
    Scoring,
    paged_attention,
    reference,
)


@dataclass(frozen=True)
class Shape:
    """Heads and cache of a case."""

    num_heads: int = 4
    num_kv_heads: int = 2
    dim: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None


class Case:
    """A filled cache and the queries of a step. Blocks are scattered; nothing but written positions is a number."""

    def __init__(self, shape: Shape, lens: list[tuple[int, int]], device: torch.device) -> None:
        """lens: query and context length of every span."""
        self.shape, self.lens, self.device = shape, lens, device
        num_blocks = [-(-context // shape.block_size) for _, context in lens]
        pool_size = sum(num_blocks) + 2
        cache_shape = (pool_size, shape.block_size, shape.num_kv_heads, shape.dim)
        cache_dtype = shape.cache_dtype or shape.dtype
        self.key_cache, self.value_cache = (
            torch.full(cache_shape, float("nan"), device=device).to(cache_dtype) for _ in range(2)
        )
        free = torch.randperm(pool_size - 1).add(1)  # block 0 stays poison: tables are padded with it
        self.tables = torch.zeros(len(lens), max(num_blocks, default=0) + 1, dtype=torch.int32)
        self.keys, self.values = [], []
        for span, (_, context) in enumerate(lens):
            blocks, free = free[: num_blocks[span]], free[num_blocks[span] :]
            self.tables[span, : len(blocks)] = blocks
            positions = torch.arange(context)
            where = (blocks[positions // shape.block_size], positions % shape.block_size)
            key, value = (
                torch.randn(context, shape.num_kv_heads, shape.dim).to(cache_dtype).to(device)
                for _ in range(2)
            )
            for cache, rows in ((self.key_cache, key), (self.value_cache, value)):
                bits = torch.uint8 if cache_dtype.itemsize == 1 else cache_dtype
                cache.view(bits)[where] = rows.view(bits)
            self.keys.append(key.double())
            self.values.append(value.double())
        self.tables = self.tables.to(device)
        num_tokens = sum(query for query, _ in lens)
        # A slice of a fused projection, as models have it.
        fused = torch.randn(num_tokens, shape.num_heads + 3, shape.dim, device=device).to(shape.dtype)
        self.query = fused[:, : shape.num_heads]

    def spans(self, **options: object) -> AttentionSpans:
        queries, contexts = (tuple(pair[i] for pair in self.lens) for i in range(2))
        return AttentionSpans(queries, contexts, self.tables, self.shape.block_size, **options)  # type: ignore[arg-type]

    def decode_spans(self, **options: object) -> DecodeSpans:
        lens = torch.tensor(self.lens, dtype=torch.int32).view(-1, 2)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens[:, 0].cumsum(0).int())).to(self.device)
        longest = [int(lens[:, i].max()) for i in range(2)]
        contexts = lens[:, 1].contiguous().to(self.device)
        bounds = {"max_query_len": longest[0], "max_context_len": longest[1], **options}
        return DecodeSpans(starts, contexts, self.tables, self.shape.block_size, **bounds)  # type: ignore[arg-type]

    def expected(
        self,
        scale: float,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        tree: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
        chunk: int | None = None,
    ) -> torch.Tensor:
        results, first = [], 0
        for (query_len, context), key, value in zip(self.lens, self.keys, self.values, strict=True):
            query = self.query[first : first + query_len].double()
            group = self.shape.num_heads // self.shape.num_kv_heads
            key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", query, key) * scale
            if soft_cap is not None:
                scores = soft_cap * (scores / soft_cap).tanh()
            positions = torch.arange(context, device=self.device)
            distance = positions[context - query_len :, None] - positions
            if slopes is not None:
                scores = scores - slopes.double().view(-1, 1, 1) * distance
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            if chunk is not None:
                hidden |= positions[context - query_len :, None] // chunk != positions // chunk
            if tree is not None:
                bits = tree[first : first + query_len, None] >> distance.clamp(0, 31)
                hidden |= (distance < 32) & (bits & 1 == 0)
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                scores = torch.cat((scores, sinks.double().view(-1, 1, 1).expand(-1, query_len, 1)), -1)
            weights = scores.softmax(-1)[..., :context]
            results.append(torch.einsum("hqk,khd->qhd", weights, value))
            first += query_len
        return torch.cat(results)


def slopes_of(num_heads: int, device: torch.device) -> torch.Tensor:
    """The slopes that models use: the first heads see what is near, the last ones hardly lose anything."""
    return 2.0 ** (torch.arange(1, num_heads + 1, device=device) * (-8.0 / num_heads))


def check(case: Case, slack: float = 1.0, tree: torch.Tensor | None = None, **options: object) -> None:
    """The kernel and the reference, eager and, where all spans are decodes, as a graph would call it."""
    scale = case.shape.dim**-0.5
    expected = case.expected(scale, tree=tree, **options)  # type: ignore[arg-type]
    arguments = (case.query, case.key_cache, case.value_cache)
    spans = case.spans(tree=tree)
    scoring = Scoring(scale, **options)  # type: ignore[arg-type]
    assert_close(paged_attention(*arguments, spans, scoring), expected, slack)
    plain = reference.paged_attention(AttentionArguments(*arguments, case.spans(tree=tree), scoring))
    assert_close(plain, expected, slack)
    if all(query_len <= 8 for query_len, _ in case.lens):
        decoded = paged_attention(*arguments, case.decode_spans(tree=tree), scoring)
        assert_close(decoded, expected, slack)
