"""States of slots for which tokens are drafted: a state cannot go back behind a wrong draft, so those behind every
token are kept until it is known how many drafts were right.

The layers copy them while they compute the step; the state behind the last draft is left in the row of the slot. Then
the slot gets the state that it goes on from, and a snapshot that of the last end of a block that was reached.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from penstock_server.engine.plan import Span
from penstock_server.engine.snapshots import Snapshots
from penstock_server.network.states import States

# In the place of a row, where nothing is kept.
NOWHERE = -1


class _Drafted(NamedTuple):
    """The last token of a slot and so many drafts: the states behind all but the last are in rows from `first` on."""

    start: int
    first: int
    num_drafts: int


class DraftStates:
    """The states of the last step that drafted."""

    def __init__(self, states: States, snapshots: Snapshots, block_size: int) -> None:
        self._states = states
        self._snapshots = snapshots
        self._block_size = block_size
        self._drafted: dict[int, _Drafted] = {}
        # By slot: the place of a snapshot that waits for its drafts.
        self._waiting: dict[int, int] = {}
        # From row to row.
        self._copies: list[tuple[int, int]] = []

    def affordable(self, wanted: Mapping[int, int]) -> Mapping[int, int]:
        """The numbers of tokens to be drafted, by slot, limited to the rows that there are."""
        left, found = self._states.rows.num_drafts, {}
        for slot, number in wanted.items():
            found[slot] = min(number, left)
            left -= found[slot]
        return {slot: number for slot, number in found.items() if number > 0}

    def begin(self, spans: Sequence[Span]) -> None:
        """The spans of a step with all that is drafted behind them."""
        self.clear()
        used = 0
        for span in spans:
            if span.drafts:
                first = self._states.rows.draft(used)
                self._drafted[span.slot] = _Drafted(span.known_end - 1, first, len(span.drafts))
                used += len(span.drafts)

    def rows(self, span: Span) -> Iterator[int]:
        """Where the state behind each token of a span is kept."""
        yield from (NOWHERE for _ in range(span.length - 1 - len(span.drafts)))
        if span.drafts:
            first = self._drafted[span.slot].first
            yield from range(first, first + len(span.drafts))
        yield NOWHERE

    def postpone(self, places: Mapping[int, int]) -> Mapping[int, int]:
        """The places of snapshots, by slot, that do not wait for drafts."""
        self._waiting = {slot: place for slot, place in places.items() if slot in self._drafted}
        return {slot: place for slot, place in places.items() if slot not in self._drafted}

    def accept(self, slot: int, num_right: int) -> None:
        """So many of the drafts of a slot were right."""
        drafted = self._drafted.pop(slot, None)
        if drafted is None:
            return
        if num_right < drafted.num_drafts:
            self._copies.append((drafted.first + num_right, slot))
        if slot in self._waiting:
            self._snap(slot, drafted, num_right, self._waiting.pop(slot))

    def _snap(self, slot: int, drafted: _Drafted, num_right: int, place: int) -> None:
        reached = (drafted.start + 1 + num_right) // self._block_size * self._block_size
        number = reached - drafted.start - 1
        if number < 0:
            return
        source = slot if number == drafted.num_drafts else drafted.first + number
        self._copies.append((source, self._states.rows.snapshot(place)))
        self._snapshots.note(place, reached)

    def settle(self) -> None:
        """Launch the copies for what was accepted since the last call."""
        if self._copies:
            sources, targets = zip(*self._copies, strict=True)
            self._states.copy(list(sources), list(targets))
        self.clear()

    def clear(self) -> None:
        """No slot has drafts of which anything is to be known."""
        self._drafted.clear()
        self._waiting = {}
        self._copies.clear()
