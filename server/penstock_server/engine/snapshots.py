"""Snapshots: states of slots as they were behind some span, with which other slots begin.

What the host knows of them follows from the plans alone, as with slots.
"""

from collections.abc import Iterable, Mapping, Sequence

from penstock_server.engine.checks import require
from penstock_server.engine.plan import Admit, Span, Spans
from penstock_server.network.states import AnyStates, States

_ROWS_ONLY = "the limits allow snapshots of rows only"


class Snapshots:
    """The places for them, each of which holds a state or nothing."""

    def __init__(self, states: AnyStates, num_snapshots: int) -> None:
        self._states = states
        self._num_snapshots = num_snapshots
        # By place: of how many positions it is the state.
        self._lens: dict[int, int] = {}
        # Slots that were admitted with a snapshot, and still need it.
        self._begun: dict[int, int] = {}

    def clear(self, slots: Iterable[int]) -> None:
        """Nothing is kept, and these slots are no longer in use."""
        self._lens.clear()
        self._begun.clear()
        self.retire(slots)

    def retire(self, slots: Iterable[int]) -> None:
        """These slots are no longer in use."""
        self._states.forget(list(slots))

    def begin(self, admit: Admit) -> int:
        """How many positions a slot has behind it that is admitted with a snapshot; raises SlotRefused if it cannot."""
        place, num_tokens = admit.snapshot, len(admit.token_ids)
        assert place is not None, "the caller looked"
        require(
            place < self._num_snapshots,
            f"snapshot {place} is not below num_snapshots {self._num_snapshots}",
        )
        require(place in self._lens, f"nothing is kept as snapshot {place}")
        length = self._lens[place]
        require(length < num_tokens, f"snapshot {place} is of {length} tokens, and the slot has {num_tokens}")
        self._begun[admit.slot] = place
        return length

    def restore_begun(self) -> None:
        """Launch the copies for the slots that began since the last call."""
        if self._begun:
            assert isinstance(self._states, States), _ROWS_ONLY
            self._states.restore(list(self._begun.values()), list(self._begun))
            self._begun.clear()

    def note(self, place: int, length: int) -> None:
        """The state of so many positions is copied to a place."""
        self._lens[place] = length

    def keep(self, spans: Sequence[Span], places: Mapping[int, int]) -> None:
        """Launch the copies of the states behind these spans, of the slots for which `places` has a place."""
        slots, starts, lens = Spans.of(spans).numbers
        ends = zip(slots.tolist(), (starts + lens).tolist(), strict=True)
        kept = {slot: end for slot, end in ends if slot in places}
        if kept:
            assert isinstance(self._states, States), _ROWS_ONLY
            self._states.keep(list(kept), [places[slot] for slot in kept])
            self._lens |= {places[slot]: end for slot, end in kept.items()}
