"""The hidden states that a head got and has not computed yet, by slot.

The state of a position is of use when the token behind the position is known. Those of wrong drafts are of no use.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Run(NamedTuple):
    """States of positions that follow each other, [num_positions, size]."""

    start: int
    states: torch.Tensor

    @property
    def end(self) -> int:
        return self.start + len(self.states)

    def before(self, end: int) -> "Run":
        """Only the positions before this one."""
        return self if end >= self.end else Run(self.start, self.states[: max(0, end - self.start)])

    def behind(self, start: int) -> "Run":
        """Only the positions from this one on."""
        return Run(start, self.states[start - self.start :])


class KeptStates:
    """For each slot, the states of its last positions, without a gap."""

    def __init__(self) -> None:
        self._runs: dict[int, list[Run]] = {}
        # The size of all states; None: something has changed since it was known.
        self._num_bytes: int | None = 0

    def add(self, slot: int, run: Run) -> None:
        """Add positions that the model computed. Those that are here already were computed again, and are replaced."""
        self._num_bytes = None
        runs = self._runs.setdefault(slot, [])
        while runs and runs[-1].end > run.start:
            begun = runs.pop().before(run.start)
            if len(begun.states):
                runs.append(begun)
        if runs and runs[-1].end != run.start:
            runs.clear()
        runs.append(run)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep, of the tree behind the last known position of a slot, only the states of these tokens."""
        runs = self._runs.get(slot)
        if runs:
            self._num_bytes = None
            rows = [0, *(1 + number for number in path)]
            runs[-1] = Run(runs[-1].start, runs[-1].states[rows])

    def forget(self, slot: int) -> None:
        """A slot was given back, or the head has computed its states."""
        self._num_bytes = None
        self._runs.pop(slot, None)

    def clear(self) -> None:
        """Forget all."""
        self._num_bytes = None
        self._runs.clear()

    def known(self, slot: int, length: int) -> Run | None:
        """The states of a slot with `length` tokens, for positions before its last token."""
        parts = [run.before(length - 1) for run in self._runs.get(slot, [])]
        parts = [part for part in parts if len(part.states)]
        if not parts:
            return None
        states = parts[0].states if len(parts) == 1 else torch.cat([part.states for part in parts])
        return Run(parts[0].start, states)

    def count(self, slot: int) -> int:
        """How many positions of a slot are kept."""
        runs = self._runs[slot]
        return runs[-1].end - runs[0].start

    def end(self, slot: int) -> int:
        """The position behind the last one of a slot that is kept."""
        return self._runs[slot][-1].end

    @property
    def num_bytes(self) -> int:
        """The size of all states."""
        if self._num_bytes is None:
            self._num_bytes = sum(run.states.nbytes for runs in self._runs.values() for run in runs)
        return self._num_bytes

    def slots(self) -> list[int]:
        """The slots that have states here."""
        return list(self._runs)
