"""Spans whose states are kept, one after the other: several of them may be parts of one sequence."""

from collections.abc import Callable
from itertools import accumulate, pairwise

import torch

from penstock_kernels.base.recurrent_spans import RecurrentSpans


def in_order(
    spans: RecurrentSpans, state: torch.Tensor, compute: Callable[[slice, RecurrentSpans], torch.Tensor]
) -> torch.Tensor:
    """The results of `compute` for the tokens of each span, below each other. No shape depends on numbers."""
    assert spans.kept is not None, "else spans are computed side by side"
    targets = torch.where(spans.kept < 0, spans.slots, spans.kept)
    found = []
    for number, (begin, end) in enumerate(pairwise(accumulate(spans.query_lens, initial=0))):
        found.append(compute(slice(begin, end), spans.part(number)))
        state[targets[number : number + 1]] = state[spans.slots[number : number + 1]]
    return torch.cat(found)
