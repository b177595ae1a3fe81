"""Drafts the next tokens of a slot from those it has: what followed the last time that its last few tokens occurred.

A draft takes some microseconds for each thousand tokens. It follows from the tokens alone, so that all ranks make the
same one.
"""

import numpy as np

from penstock_server.engine.history_drafter import LONGEST_RUN, HistoryDrafter
from penstock_server.engine.plan import Numbers

# The fewest last tokens that are looked for. A single token is mostly followed by something else than the last time.
_SHORTEST_RUN = 2


class NgramDrafter(HistoryDrafter):
    """Drafts the tokens that followed the latest earlier occurrence of the longest run of last tokens."""

    def draft_behind(self, tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
        return draft(tokens, max_drafts)


def draft(tokens: Numbers, max_drafts: int) -> tuple[int, ...]:
    """`max_drafts` tokens that may follow `tokens`; none where its last two have not occurred before."""
    start = _after_longest_run(tokens)
    if start is None:
        return ()
    # Tokens that repeat up to the end go on repeating.
    period = len(tokens) - start
    return tuple(int(tokens[start + number % period]) for number in range(max_drafts))


def _after_longest_run(tokens: Numbers) -> int | None:
    """The position behind the latest earlier occurrence of the longest run of last tokens that has one."""
    found, ends = None, np.flatnonzero(tokens[:-1] == tokens[-1])
    for length in range(_SHORTEST_RUN, min(LONGEST_RUN, len(tokens) - 1) + 1):
        ends = ends[ends >= length - 1]
        ends = ends[tokens[ends - length + 1] == tokens[-length]]
        if not len(ends):
            break
        found = int(ends[-1]) + 1
    return found
