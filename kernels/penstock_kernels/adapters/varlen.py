"""Prompts by `varlen_attn` of PyTorch, which is FlashAttention; everything else by our own kernels.

It reads a paged cache only in pages of 256 positions, and ours are smaller. So it computes the spans that begin a
sequence: their keys and values are gathered from the cache, side by side, no more of them than the step has tokens.
Not run on a GPU by this project yet.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from penstock_kernels.base.attention_spans import MAX_DECODE_LEN, Attend, AttentionArguments, AttentionSpans
from penstock_kernels.base.upload import upload
from penstock_kernels.table import paged_attention


@dataclass(frozen=True, slots=True)
class _Division:
    """Who computes which spans of a step, for all layers."""

    # Rows of the queries, and the flat cache positions of their keys: of spans that begin a sequence.
    rows: torch.Tensor
    positions: torch.Tensor
    starts: torch.Tensor  # [num_spans + 1] int32
    longest: int
    # The other spans and their rows; None where there are none.
    others: AttentionSpans | None
    other_rows: torch.Tensor


class VarlenAttention:
    """`function` is `torch.nn.attention.varlen.varlen_attn`."""

    def __init__(self, function: Callable[..., torch.Tensor], own: Attend = paged_attention) -> None:
        self._function = function
        self._own = own

    def __call__(self, arguments: AttentionArguments) -> torch.Tensor:
        spans = arguments.spans
        if not isinstance(spans, AttentionSpans) or spans.tree is not None:
            return self._own(arguments)
        division = spans.shared("varlen", lambda: _divide(spans))
        if division is None:
            return self._own(arguments)
        if division.others is None:
            return self._attend(arguments, division)
        out = torch.empty(arguments.query.shape, dtype=arguments.query.dtype, device=arguments.query.device)
        out[division.rows] = self._attend(arguments, division)
        out[division.other_rows] = self._own(arguments.among(division.other_rows, division.others))
        return out

    def _attend(self, arguments: AttentionArguments, division: _Division) -> torch.Tensor:
        query, scoring = arguments.query, arguments.scoring
        key, value = (
            cache.flatten(0, 1).index_select(0, division.positions)
            for cache in (arguments.key_cache, arguments.value_cache)
        )
        return self._function(
            query.contiguous() if division.others is None else query[division.rows],
            key,
            value,
            division.starts,
            division.starts,
            division.longest,
            division.longest,
            scale=scoring.scale,
            # It counts the positions before the query, we count the query, too.
            window_size=(-1 if scoring.window is None else scoring.window - 1, 0),
            enable_gqa=arguments.group > 1,
        )


def _divide(spans: AttentionSpans) -> _Division | None:
    """None where no span begins a sequence."""
    lens = list(zip(spans.query_lens, spans.context_lens, strict=True))
    firsts = [span for span, (length, context) in enumerate(lens) if length == context > MAX_DECODE_LEN]
    if not firsts:
        return None
    others = [span for span, (length, _) in enumerate(lens) if length and span not in set(firsts)]
    chosen, device = spans.among(firsts), spans.block_tables.device
    return _Division(
        rows=upload(torch.tensor(spans.rows_of(firsts)), device),
        positions=_positions(chosen),
        starts=upload(torch.tensor(chosen.query_starts, dtype=torch.int32), device),
        longest=max(chosen.query_lens),
        others=spans.among(others) if others else None,
        other_rows=upload(torch.tensor(spans.rows_of(others), dtype=torch.int64), device),
    )


def _positions(spans: AttentionSpans) -> torch.Tensor:
    """Where the keys of whole sequences are, as flat cache positions, sequence after sequence."""
    lens, size = torch.tensor(spans.context_lens), spans.block_size
    offsets = torch.arange(int(lens.sum())) - (lens.cumsum(0) - lens).repeat_interleave(lens)
    places = torch.arange(len(lens)).repeat_interleave(lens) * spans.block_tables.shape[1] + offsets // size
    sent = upload(torch.stack((places, offsets % size)), spans.block_tables.device)
    return spans.block_tables.flatten().index_select(0, sent[0]).long() * size + sent[1]
