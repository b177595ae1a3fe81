"""The drafts of a step of decodes that is given as arrays, and how many of them were right."""

from collections.abc import Container, Sequence
from functools import cached_property
from itertools import chain

import numpy as np

from penstock_server.engine.plan import Drafts, Numbers
from penstock_server.engine.token_tree import TokenTree, right_path


class Drafted:
    """For each span, the tokens drafted behind it. The rows of a span follow each other."""

    def __init__(self, slots: Sequence[int], drafts: Drafts) -> None:
        """`slots`: the slot of each span."""
        self.slots, self.drafts = slots, drafts
        self.tokens = [drafts.get(slot, ()) for slot in slots]
        self.counts: Numbers = np.array([len(tokens) for tokens in self.tokens], dtype=np.int64)
        self.num_rows = len(slots) + int(self.counts.sum())
        self.has_trees = any(isinstance(tokens, TokenTree) for tokens in self.tokens)

    @cached_property
    def firsts(self) -> Numbers:
        """The first row of each span."""
        return self.counts.cumsum() - self.counts + np.arange(len(self.counts))

    @property
    def token_ids(self) -> Numbers:
        """All drafted tokens, one after the other."""
        return np.array([*chain.from_iterable(self.tokens)], dtype=np.int64)

    def numbers(self, but: Container[int]) -> dict[int, int]:
        """How many tokens are drafted for each slot that has drafts and is not in `but`."""
        pairs = zip(self.slots, self.tokens, strict=True)
        return {slot: len(tokens) for slot, tokens in pairs if tokens and slot not in but}

    @property
    def shifts(self) -> Numbers:
        """By how much the place of each row is greater than its position; 0 except in trees."""
        shifts: Numbers = np.zeros(self.num_rows, dtype=np.int64)
        for first, tokens in self._trees():
            shifts[first + 1 : first + 1 + len(tokens)] = np.arange(1, len(tokens) + 1) - tokens.depths
        return shifts

    @property
    def seen(self) -> Numbers:
        """The places that each row sees, in the form of `AttentionSpans.tree`."""
        seen: Numbers = np.full(self.num_rows, -1, dtype=np.int64)
        for first, tokens in self._trees():
            seen[first + 1 : first + 1 + len(tokens)] = tokens.seen
        return seen

    def _trees(self) -> list[tuple[int, TokenTree]]:
        """The first row of each span with a tree, and the tree."""
        pairs = zip(self.firsts.tolist(), self.tokens, strict=True)
        return [(first, tokens) for first, tokens in pairs if isinstance(tokens, TokenTree)]

    def right(self, chosen: list[int], are_finite: list[bool]) -> list[list[int]]:
        """For each span, the numbers of the right drafts: those that are the chosen tokens. `chosen`: of all rows."""
        found = []
        for first, tokens in zip(self.firsts.tolist(), self.tokens, strict=True):
            rows = slice(first, first + 1 + len(tokens))
            found.append(right_path(tokens, chosen[rows], are_finite[rows]))
        return found

    def counted(self, paths: Sequence[Sequence[int]]) -> Numbers:
        """The rows whose tokens count. `paths`: the right drafts of each span."""
        pairs = zip(self.firsts.tolist(), paths, strict=True)
        rows = [row for first, path in pairs for row in (first, *(first + 1 + number for number in path))]
        return np.array(rows, dtype=np.int64)
