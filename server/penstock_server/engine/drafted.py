"""What is drafted in a step of decodes that is given as arrays, and how much of it was right."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from penstock_server.engine.plan import Drafts, Numbers


class Drafted:
    """Of each span the tokens drafted behind it; its rows follow each other."""

    def __init__(self, slots: Sequence[int], drafts: Drafts) -> None:
        """`slots`: those of the spans, in their order."""
        self.slots = slots
        self.tokens = [drafts.get(slot, ()) for slot in slots]
        self.counts: Numbers = np.array([len(tokens) for tokens in self.tokens], dtype=np.int64)
        self.num_rows = len(slots) + int(self.counts.sum())

    @cached_property
    def firsts(self) -> Numbers:
        """The first row of each span."""
        return self.counts.cumsum() - self.counts + np.arange(len(self.counts))

    def num_right(self, chosen: list[int], are_finite: list[bool]) -> list[int]:
        """Of each span how many drafts are what was chosen, by the tokens of all rows.

        A row that got none is behind no right draft: it fails again in the next step, as the first row of its slot.
        """
        found = []
        for first, tokens in zip(self.firsts.tolist(), self.tokens, strict=True):
            row, last = first, first + len(tokens)
            while (
                row < last and are_finite[row] and are_finite[row + 1] and chosen[row] == tokens[row - first]
            ):
                row += 1
            found.append(row - first)
        return found

    def counted(self, num_right: list[int]) -> Numbers:
        """The rows whose tokens count."""
        firsts = self.firsts.tolist()
        rows = [range(first, first + 1 + right) for first, right in zip(firsts, num_right, strict=True)]
        return np.array([row for run in rows for row in run], dtype=np.int64)
