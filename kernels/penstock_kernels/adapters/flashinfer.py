"""Attention by FlashInfer. Its paged cache in the layout "NHD" is ours: blocks are its pages, and nothing is copied.

A step is planned once for the layers that score alike: decodes by its decode wrapper, anything else by its prefill
wrapper. Not run on a GPU by this project yet.
"""

from collections import deque
from typing import Any, NamedTuple

import torch

from penstock_kernels.base.attention_spans import AttentionArguments, AttentionSpans
from penstock_kernels.base.upload import upload

# The size that its documentation gives. The parts of split sequences are combined there.
_WORKSPACE_BYTES = 128 * 1024**2
# A plan is copied from pinned memory of its wrapper, and the next plan may overwrite it before the device has read it.
# So there are as many wrappers as there can be steps in flight.
_STEPS_IN_FLIGHT = 2


class PageTable(NamedTuple):
    """Pages as FlashInfer wants them: int32; all but the pages themselves are on the host."""

    query_starts: torch.Tensor  # [num_spans + 1]
    page_starts: torch.Tensor  # [num_spans + 1]
    pages: torch.Tensor  # [num_pages], span after span
    last_lens: torch.Tensor  # [num_spans], positions in each last page


def page_table(spans: AttentionSpans) -> PageTable:
    """The pages of the spans. The host does not wait for the device, on which the block tables are."""
    contexts = torch.tensor(spans.context_lens, dtype=torch.int32)
    counts = (contexts + spans.block_size - 1) // spans.block_size
    page_starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
    page_starts[1:] = counts.cumsum(0)
    last_lens = contexts - (counts - 1).clamp(min=0) * spans.block_size
    query_starts = torch.tensor(spans.query_starts, dtype=torch.int32)
    return PageTable(query_starts, page_starts, _pages(spans.block_tables, counts, page_starts), last_lens)


def _pages(tables: torch.Tensor, counts: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """The first `counts` entries of every row of the tables, side by side."""
    num_pages, device = int(starts[-1]), tables.device
    spans = torch.arange(len(counts)).repeat_interleave(counts)
    columns = torch.arange(num_pages) - starts[:-1].long().repeat_interleave(counts)
    places = spans * tables.shape[1] + columns
    return tables.flatten().index_select(0, upload(places, device))


class FlashInferAttention:
    """The wrappers of a shard, and what they share."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library = library
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[Any, deque[Any]] = {}

    def __call__(self, arguments: AttentionArguments) -> torch.Tensor:
        spans, scoring = arguments.spans, arguments.scoring
        assert isinstance(spans, AttentionSpans), "its steps are not captured"
        assert spans.tree is None, "the server sends no trees"
        kind = (scoring.window, scoring.soft_cap, scoring.scale)
        wrapper = spans.shared(("flashinfer", kind), lambda: self._plan(arguments, spans, kind))
        caches = (arguments.key_cache, arguments.value_cache)
        query = arguments.query.contiguous()
        attended: torch.Tensor = wrapper.run(
            query, caches, k_scale=scoring.key_scale, v_scale=scoring.value_scale
        )
        return attended

    def _plan(self, arguments: AttentionArguments, spans: AttentionSpans, kind: Any) -> Any:
        """A wrapper with the plan of this step."""
        table, scoring, query = page_table(spans), arguments.scoring, arguments.query
        sizes = (query.shape[1], arguments.num_kv_heads, query.shape[2], spans.block_size)
        options = {
            "sm_scale": scoring.scale,
            # It counts the positions before the query, we count the query, too.
            "window_left": -1 if scoring.window is None else scoring.window - 1,
            "logits_soft_cap": scoring.soft_cap or 0.0,
            "q_data_type": query.dtype,
            "kv_data_type": arguments.key_cache.dtype,
        }
        is_decode = all(length == 1 for length in spans.query_lens)
        wrapper = self._next_wrapper(is_decode, kind)
        pages = (table.page_starts, table.pages, table.last_lens)
        if is_decode:
            wrapper.plan(*pages, *sizes, **options)
        else:
            wrapper.plan(table.query_starts, *pages, *sizes, causal=True, **options)
        return wrapper

    def _next_wrapper(self, is_decode: bool, kind: Any) -> Any:
        ring = self._wrappers.setdefault((is_decode, kind), deque())
        if len(ring) < _STEPS_IN_FLIGHT:
            ring.append(self._new_wrapper(is_decode))
        else:
            ring.rotate(-1)
        return ring[-1]

    def _new_wrapper(self, is_decode: bool) -> Any:
        if is_decode:
            # Tensor cores take any number of query heads per key head.
            wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper
            return wrapper(self._workspace, "NHD", use_tensor_cores=True)
        return self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
