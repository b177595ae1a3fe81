"""Drafts the next tokens of a slot from what followed its longest suffixes wherever these occurred before in prompt and
output: each place has a vote, which counts the more the longer its suffix is.

The places are found by comparing columns of numbers, so a draft takes some microseconds for each thousand tokens and
needs no memory; a tree would have to be kept for every slot, and made again where one is resumed. It follows from the
tokens alone, so that all ranks make the same one.
"""

import numpy as np

from penstock_server.engine.history_drafter import LONGEST_RUN, HistoryDrafter
from penstock_server.engine.plan import Numbers

# A single token is mostly followed by something else than the last time.
_SHORTEST = 2
# Only so many places vote, the last ones: a text of one token has as many as tokens.
_MOST_PLACES = 1024
# A vote of a suffix one token longer counts so many times as much.
_WEIGHT_OF_TOKEN = 2.0
# A draft ends where the votes for it fall below this part of all.
_LEAST_SHARE = 0.25


class SuffixDrafter(HistoryDrafter):
    """Drafts the tokens that most of the places vote for."""

    def draft_behind(self, tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
        return draft(tokens, max_drafts)


def draft(tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
    """Up to `max_drafts` tokens that may follow `tokens`; none where its last two have not occurred before."""
    nexts, lens = _places(tokens)
    weights = _WEIGHT_OF_TOKEN ** (lens - lens.max(initial=0))
    total = weights.sum()
    drafted: list[int] = []
    # Text that repeats up to the end goes on with the drafted tokens.
    known = np.concatenate([tokens, np.zeros(max_drafts, dtype=tokens.dtype)])
    while len(nexts) and len(drafted) < max_drafts:
        token, votes = _chosen(known[nexts], weights)
        if votes < _LEAST_SHARE * total:
            break
        known[len(tokens) + len(drafted)] = token
        drafted.append(token)
        agree = known[nexts] == token
        nexts, weights = nexts[agree] + 1, weights[agree]
    return tuple(drafted)


def _places(tokens: Numbers) -> tuple[Numbers, Numbers]:
    """Positions behind earlier occurrences of the last tokens, and how many of these each has behind it."""
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])[-_MOST_PLACES:]
    lens = np.ones(len(ends), dtype=np.int64)
    going = np.arange(len(ends))
    for length in range(2, min(LONGEST_RUN, len(tokens) - 1) + 1):
        going = going[ends[going] >= length - 1]
        going = going[tokens[ends[going] - length + 1] == tokens[-length]]
        if not len(going):
            break
        lens[going] = length
    is_long = lens >= _SHORTEST
    return ends[is_long] + 1, lens[is_long]


def _chosen(tokens: Numbers, weights: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[int, float]:
    """The token with most votes, of several the one that occurred last, and how many it has."""
    found, first = np.unique(tokens[::-1], return_index=True)
    votes = np.bincount(np.searchsorted(found, tokens), weights, len(found))
    best = int(np.lexsort((first, -votes))[0])
    return int(found[best]), float(votes[best])
