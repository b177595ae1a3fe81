"""Attention of long prompts in 16 bits: PyTorch multiplies in the processor's tiles (AMX), and attention in C does not.

Rows of such a prompt depend on how it is divided into chunks; where no batch may change a result, all is in C.
"""

from dataclasses import dataclass

import torch

from penstock_kernels import reference
from penstock_kernels.base.attention_spans import AttentionArguments, AttentionSpans, Scoring
from penstock_kernels.native import attention
from penstock_kernels.native.linear import has_amx

# Queries of a span from which on PyTorch is faster, although it gathers the keys first: measured.
_LONG = 128


@dataclass(frozen=True, slots=True)
class Division:
    """The spans of a step by who computes them, for all layers, with the rows of their queries."""

    long: AttentionSpans
    long_rows: torch.Tensor
    # None where all spans are long.
    short: AttentionSpans | None
    short_rows: torch.Tensor


def paged_attention(arguments: AttentionArguments, max_lanes: int = 0) -> torch.Tensor:
    """The op in C, but the reference computes long spans. `max_lanes`: see `attention.paged_attention`."""
    division = _division(arguments) if max_lanes == 0 else None
    if division is None:
        return attention.paged_attention(arguments, max_lanes)
    if division.short is None:
        return reference.paged_attention(arguments)
    output = torch.empty(arguments.query.shape, dtype=arguments.query.dtype)
    output[division.long_rows] = reference.paged_attention(arguments.among(division.long_rows, division.long))
    output[division.short_rows] = attention.paged_attention(
        arguments.among(division.short_rows, division.short)
    )
    return output


def _division(arguments: AttentionArguments) -> Division | None:
    """None where all is in C."""
    spans = arguments.spans
    is_possible = arguments.query.dtype == torch.bfloat16 and _is_plain(arguments.scoring) and has_amx()
    if not is_possible or not isinstance(spans, AttentionSpans) or spans.unbatched:
        return None
    return spans.shared("long prompts", lambda: _divide(spans))


def _is_plain(scoring: Scoring) -> bool:
    """Whether PyTorch has one function for such scores."""
    return scoring.soft_cap is None and scoring.sinks is None and scoring.slopes is None


def _divide(spans: AttentionSpans) -> Division | None:
    long = [span for span, length in enumerate(spans.query_lens) if length >= _LONG]
    if not long:
        return None
    short = [span for span, length in enumerate(spans.query_lens) if 0 < length < _LONG]
    return Division(
        long=spans.among(long),
        long_rows=torch.tensor(spans.rows_of(long)),
        short=spans.among(short) if short else None,
        short_rows=torch.tensor(spans.rows_of(short), dtype=torch.int64),
    )
