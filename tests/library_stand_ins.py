"""STAND-INS for FlashInfer, torch's `varlen_attn` and FlashAttention 3, which need a GPU: what their documentation says
of arguments and results, computed plainly in float64. They show that our adapters hand over the right numbers, not
that the libraries work; the tests marked `gpu` ask the libraries themselves.
"""

from itertools import pairwise
from typing import Any

import torch


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    window_left: int = -1,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    """Causal, the last query at the last key. query: [num_queries, num_heads, dim]; key: [num_keys, kv heads, dim]."""
    group, num_new = query.shape[1] // key.shape[1], query.shape[0]
    key, value = (part.double().repeat_interleave(group, 1) for part in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    if soft_cap > 0:
        scores = soft_cap * (scores / soft_cap).tanh()
    distance = torch.arange(len(key) - num_new, len(key))[:, None] - torch.arange(len(key))
    hidden = (distance < 0) | ((distance > window_left) if window_left >= 0 else False)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> torch.Tensor:
    """Stands in for `torch.nn.attention.varlen.varlen_attn`: causal attention over packed sequences."""
    assert window_size[1] == 0
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return _packed(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size[0])


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float,
    causal: bool,
    softcap: float,
) -> torch.Tensor:
    """Stands in for the function of the wheel `fa3-fwd`: the last query is at the last key, and there is no window."""
    assert causal
    spans = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    return _packed(q, k, v, *spans, softmax_scale, -1, softcap)


def _packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor,
    key_starts: torch.Tensor,
    longest: int,
    longest_key: int,
    scale: float,
    window_left: int,
    soft_cap: float = 0.0,
) -> torch.Tensor:
    assert starts.dtype == key_starts.dtype == torch.int32
    queries, keys = list(pairwise(starts.tolist())), list(pairwise(key_starts.tolist()))
    assert longest == max(b - a for a, b in queries)
    assert longest_key == max(b - a for a, b in keys)
    return torch.cat(
        [
            attend(query[a:b], key[c:d], value[c:d], scale, window_left, soft_cap)
            for (a, b), (c, d) in zip(queries, keys, strict=True)
        ]
    )


class _Wrapper:
    """The base of both wrappers of FlashInfer: a paged cache "NHD" by page starts, pages and lengths of last pages."""

    def __init__(self, workspace: torch.Tensor, kv_layout: str, **_options: Any) -> None:
        assert kv_layout == "NHD"
        assert workspace.dtype == torch.uint8
        self.num_plans = 0

    def _keep(self, query_starts: torch.Tensor, *pages: Any, **options: Any) -> None:
        self.num_plans += 1
        self.query_starts = query_starts.tolist()
        (starts, page_ids, last_lens), self.sizes = pages[:3], pages[3:]
        assert starts.dtype == page_ids.dtype == last_lens.dtype == torch.int32
        self.starts, self.page_ids, self.last_lens = starts.tolist(), page_ids.long(), last_lens.tolist()
        self.options = options

    def run(
        self, query: torch.Tensor, caches: tuple[torch.Tensor, torch.Tensor], k_scale: float, v_scale: float
    ) -> torch.Tensor:
        assert query.is_contiguous()
        assert self.sizes == (query.shape[1], caches[0].shape[2], query.shape[2], caches[0].shape[1])
        assert (self.options["q_data_type"], self.options["kv_data_type"]) == (query.dtype, caches[0].dtype)
        return torch.cat(
            [self._span(span, query, caches, k_scale, v_scale) for span in range(len(self.last_lens))]
        )

    def _span(
        self, span: int, query: torch.Tensor, caches: Any, k_scale: float, v_scale: float
    ) -> torch.Tensor:
        pages = self.page_ids[self.starts[span] : self.starts[span + 1]]
        page_size = self.sizes[3]
        assert 0 < self.last_lens[span] <= page_size
        num_keys = (len(pages) - 1) * page_size + self.last_lens[span]
        key, value = (cache[pages].flatten(0, 1)[:num_keys].float() for cache in caches)
        rows = query[self.query_starts[span] : self.query_starts[span + 1]]
        scale, window = self.options["sm_scale"] * k_scale, self.options["window_left"]
        return attend(rows, key, value, scale, window, self.options["logits_soft_cap"]) * v_scale


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """One query per sequence."""

    def plan(self, *pages: Any, **options: Any) -> None:
        self._keep(torch.arange(len(pages[2]) + 1), *pages, **options)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Any queries per sequence."""

    def plan(self, query_starts: torch.Tensor, *pages: Any, causal: bool, **options: Any) -> None:
        assert causal
        assert query_starts.dtype == torch.int32
        self._keep(query_starts, *pages, **options)
