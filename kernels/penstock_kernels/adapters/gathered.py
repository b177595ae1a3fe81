"""Prompts by a library that reads keys and values in one piece; everything else by our own kernels.

Such a library knows no pages as small as ours. So the keys and values of the spans that it computes are gathered from
the cache, side by side, once a layer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from penstock_kernels.base.attention_spans import Attend, AttentionArguments, AttentionSpans, Scoring
from penstock_kernels.base.upload import upload
from penstock_kernels.table import paged_attention


@dataclass(frozen=True, slots=True)
class Packed:
    """Attention of spans in one piece, each causal, its last query at its last key.

    query: [num_queries, num_heads, head_dim]; key and value: [num_keys, num_kv_heads, head_dim].
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    query_starts: torch.Tensor  # [num_spans + 1] int32
    key_starts: torch.Tensor  # [num_spans + 1] int32
    longest_query: int
    longest_key: int
    query_lens: tuple[int, ...]
    scoring: Scoring

    @property
    def group(self) -> int:
        """Query heads of a key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def window(self) -> tuple[int, int]:
        """The window of the library: it counts the positions before the query, we count the query, too."""
        return (-1 if self.scoring.window is None else self.scoring.window - 1), 0


@dataclass(frozen=True, slots=True)
class Library:
    """A library that computes spans in one piece, and which spans it is given."""

    attend: Callable[[Packed], torch.Tensor]
    # Whether it is given a span, by the number of its queries and of the positions of its context.
    takes: Callable[[int, int], bool]
    can_score: Callable[[Scoring], bool] = lambda scoring: True


@dataclass(frozen=True, slots=True)
class _Division:
    """Who computes which spans of a step, for all layers."""

    # For the spans of the library: the rows of their queries, and the flat cache positions of their keys.
    rows: torch.Tensor
    positions: torch.Tensor
    query_starts: torch.Tensor
    key_starts: torch.Tensor
    longest_query: int
    longest_key: int
    query_lens: tuple[int, ...]
    # The other spans and their rows; None where there are none.
    others: AttentionSpans | None
    other_rows: torch.Tensor


class GatheredPrompts:
    """The prompts that `library` takes by it, all else by `own`."""

    def __init__(self, library: Library, own: Attend = paged_attention) -> None:
        self._library = library
        self._own = own

    def __call__(self, arguments: AttentionArguments) -> torch.Tensor:
        spans = arguments.spans
        is_ours = not isinstance(spans, AttentionSpans) or spans.tree is not None
        if is_ours or not self._library.can_score(arguments.scoring):
            return self._own(arguments)
        assert isinstance(spans, AttentionSpans)
        division = spans.shared("gathered", lambda: _divide(spans, self._library.takes))
        if division is None:
            return self._own(arguments)
        if division.others is None:
            return self._attend(arguments, division)
        out = torch.empty(arguments.query.shape, dtype=arguments.query.dtype, device=arguments.query.device)
        out[division.rows] = self._attend(arguments, division)
        out[division.other_rows] = self._own(arguments.among(division.other_rows, division.others))
        return out

    def _attend(self, arguments: AttentionArguments, division: _Division) -> torch.Tensor:
        key, value = (
            cache.flatten(0, 1).index_select(0, division.positions)
            for cache in (arguments.key_cache, arguments.value_cache)
        )
        query = arguments.query
        return self._library.attend(
            Packed(
                query.contiguous() if division.others is None else query[division.rows],
                key,
                value,
                division.query_starts,
                division.key_starts,
                division.longest_query,
                division.longest_key,
                division.query_lens,
                arguments.scoring,
            )
        )


def _divide(spans: AttentionSpans, takes: Callable[[int, int], bool]) -> _Division | None:
    """None where no span is the library's."""
    lens = list(zip(spans.query_lens, spans.context_lens, strict=True))
    taken = [span for span, (length, context) in enumerate(lens) if takes(length, context)]
    if not taken:
        return None
    others = [span for span, (length, _) in enumerate(lens) if length and span not in set(taken)]
    chosen, device = spans.among(taken), spans.block_tables.device
    return _Division(
        rows=upload(torch.tensor(spans.rows_of(taken)), device),
        positions=_positions(chosen),
        query_starts=_starts(chosen.query_lens, device),
        key_starts=_starts(chosen.context_lens, device),
        longest_query=max(chosen.query_lens),
        longest_key=max(chosen.context_lens),
        query_lens=chosen.query_lens,
        others=spans.among(others) if others else None,
        other_rows=upload(torch.tensor(spans.rows_of(others), dtype=torch.int64), device),
    )


def _starts(lens: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return upload(torch.tensor([0, *accumulate(lens)], dtype=torch.int32), device)


def _positions(spans: AttentionSpans) -> torch.Tensor:
    """Where the keys of whole sequences are, as flat cache positions, sequence after sequence."""
    lens, size = torch.tensor(spans.context_lens), spans.block_size
    offsets = torch.arange(int(lens.sum())) - (lens.cumsum(0) - lens).repeat_interleave(lens)
    places = torch.arange(len(lens)).repeat_interleave(lens) * spans.block_tables.shape[1] + offsets // size
    sent = upload(torch.stack((places, offsets % size)), spans.block_tables.device)
    return spans.block_tables.flatten().index_select(0, sent[0]).long() * size + sent[1]
