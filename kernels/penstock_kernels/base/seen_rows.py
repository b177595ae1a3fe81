"""The positions that each query of a step sees, query by query: for ops that treat every query by itself."""

from typing import NamedTuple

import torch

from penstock_kernels.base.attention_spans import AttentionSpans, DecodeSpans
from penstock_kernels.base.upload import upload


class SeenRows(NamedTuple):
    """For each query, the number of its span, and how many positions it sees: [num_tokens] int32 each. A row behind the
    last span, or of a span without a context, sees none."""

    spans: torch.Tensor
    lens: torch.Tensor

    def part(self, rows: slice) -> "SeenRows":
        """The numbers of some rows only."""
        return SeenRows(self.spans[rows], self.lens[rows])


def seen_rows(spans: AttentionSpans | DecodeSpans, num_tokens: int) -> SeenRows:
    """The `SeenRows` of a step, made once for all its layers."""
    return spans.shared("seen rows", lambda: _seen_rows(spans, num_tokens))


def _seen_rows(spans: AttentionSpans | DecodeSpans, num_tokens: int) -> SeenRows:
    return _on_device(spans, num_tokens) if isinstance(spans, DecodeSpans) else _on_host(spans)


def _on_host(spans: AttentionSpans) -> SeenRows:
    owners: list[int] = []
    lens: list[int] = []
    for span, (query_len, context_len) in enumerate(zip(spans.query_lens, spans.context_lens, strict=True)):
        owners += [span] * query_len
        lens += range(context_len - query_len + 1, context_len + 1)
    numbers = upload(torch.tensor([owners, lens], dtype=torch.int32), spans.block_tables.device)
    return SeenRows(*numbers)


def _on_device(spans: DecodeSpans, num_tokens: int) -> SeenRows:
    starts, num_spans = spans.query_starts, len(spans.context_lens)
    rows = torch.arange(num_tokens, dtype=torch.int32, device=starts.device)
    owners = torch.searchsorted(starts, rows, right=True, out_int32=True).clamp(1, num_spans) - 1
    behind = starts.index_select(0, owners + 1) - rows  # tokens of the span from this one on
    lens = (spans.context_lens.index_select(0, owners) + 1 - behind).clamp(min=0)
    return SeenRows(owners, lens * (behind > 0))
