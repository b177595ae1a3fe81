"""Heads of MEDUSA on a CPU: all of them, and the tokens that they choose, as one recorded call.

Where drafts may be trees each head has several guesses.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import torch
from penstock_kernels.native.choose import choose

from penstock_server.engine.likeliest import Guess, Likeliest
from penstock_server.engine.plan import Numbers
from penstock_server.engine.recordings import Ahead, Recordings
from penstock_server.engine.slots import Slots
from penstock_server.network.distributed import Group
from penstock_server.network.medusa import MedusaHeads


class RecordedHeads:
    """A recording for each number of slots and of drafts."""

    def __init__(self, heads: MedusaHeads, slots: Slots, group: Group, branches: int) -> None:
        """`branches`: guesses of each head for a tree."""
        self._heads = heads
        self._rows = slots.rows
        count = slots.limits.num_slots
        self._states = torch.zeros(count, heads.taps.size, dtype=heads.dtype)
        # Slots and lengths of all positions that get a token.
        self._places = torch.zeros(2, count * heads.num_heads, dtype=torch.int64)
        self._places_here: Numbers = self._places.numpy()
        self._recordings = Recordings("heads")
        self._likeliest = Likeliest(slots, group, branches, self._places.shape[1])

    def guess(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        states: Sequence[torch.Tensor],
        count: int,
        draws: bool,
    ) -> list[int]:
        """So many tokens for each slot, which has them in its row behind its length: slot by slot."""
        self._write(slots, lengths, states, count)
        self._run(len(slots), count, draws)
        tokens = self._rows.tokens
        ends = zip(slots, lengths, strict=True)
        return [token for slot, length in ends for token in tokens[slot, length : length + count].tolist()]

    def levels(
        self,
        slots: Sequence[int],
        lengths: Sequence[int],
        states: Sequence[torch.Tensor],
        count: int,
        draws: bool,
    ) -> list[list[list[Guess]]]:
        """The guesses of so many heads for each slot; all ranks get those of the first rank."""
        self._write(slots, lengths, states, count)
        self._run_levels(len(slots), count, draws)
        places = self._places_here[:, : len(slots) * count]
        found = self._likeliest.read(*places.tolist())
        return [found[first : first + count] for first in range(0, len(found), count)]

    def ahead(self, num_slots: int, max_drafts: int, has_trees: bool) -> Iterator[Ahead]:
        """See `Drafter.ahead`. Not every step drafts trees."""
        self._places_here[:] = [[self._rows.spare], [0]]
        runs = (self._run_levels, self._run) if has_trees else (self._run,)
        counts = range(1, min(max_drafts, self._heads.num_heads) + 1)
        shapes = product(runs, counts, (False, True))
        return (partial(run, num_slots, count, draws) for run, count, draws in shapes)

    def _run(self, num_slots: int, count: int, draws: bool) -> None:
        key = (num_slots, count, draws)
        self._recordings.run(key, lambda: self._compute(num_slots, count, draws))

    def _run_levels(self, num_slots: int, count: int, draws: bool) -> None:
        key = ("levels", num_slots, count, draws)
        self._recordings.run(key, lambda: self._compute_levels(num_slots, count, draws))

    def _write(
        self, slots: Sequence[int], lengths: Sequence[int], states: Sequence[torch.Tensor], count: int
    ) -> None:
        num_rows = len(slots) * count
        for number, state in enumerate(states):
            self._states[number].copy_(state)
        self._places_here[0, :num_rows] = [slot for slot in slots for _ in range(count)]
        self._places_here[1, :num_rows] = [length + head for length in lengths for head in range(count)]

    def _compute(self, num_slots: int, count: int, draws: bool) -> None:
        logits = self._heads(self._states[:num_slots], 0, count).flatten(0, 1)
        slots, lengths = self._places[:, : len(logits)]
        choose(logits, slots, lengths, self._rows.kept, draws)

    def _compute_levels(self, num_slots: int, count: int, draws: bool) -> None:
        logits = self._heads(self._states[:num_slots], 0, count).flatten(0, 1)
        slots, lengths = self._places[:, : len(logits)]
        self._likeliest.compute(logits, slots, lengths, draws)
