"""The driver of drafts for models with states: spans leave snapshots, with which preempted sequences go on."""

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any

from drafting_driver import DraftingDriver
from driver import Execute, Sequence
from open_spans import SIZES
from penstock_server.engine.drafting import Drafter
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Admit, Append, Drafts, Plan, Span

NUM_SNAPSHOTS = 6
# How likely a span leaves one.
_SNAP = 0.5
_Tokens = tuple[str, tuple[int, ...]]


class StatesDriver(DraftingDriver):
    """For each snapshot, it knows the tokens and the adapter."""

    def __init__(self, execute: Execute, lose: Callable[[], None]) -> None:
        super().__init__(execute, lose, SIZES["num_slots"], SIZES["num_blocks"])
        self.num_resumed = 0
        self.num_behind_drafts = 0
        self._known: dict[int, _Tokens] = {}
        self._behind_drafts: set[int] = set()
        # For the plan in flight: places by slot, and the slots whose spans are open.
        self._asked: dict[int, int] = {}
        self._opened: set[int] = set()
        self._ends: dict[int, int] = {}

    def send(self, plan: Plan) -> Any:
        held = {sequence.snapshot for sequence in self._waiting()}
        held |= {admit.snapshot for admit in plan.admitted}
        places = [place for place in range(NUM_SNAPSHOTS) if place not in held]
        self._rng.shuffle(places)
        chosen = [span.slot for span in plan.spans if self._rng.random() < _SNAP]
        self._asked = dict(zip(chosen, places, strict=False))
        self._opened, self._ends = set(self._open), {span.slot: span.end for span in plan.spans}
        plan.snapshots.update(self._asked)
        return super().send(plan)

    def play(self, sequences: list[Sequence], rng: random.Random) -> None:
        self._sequences: list[Sequence] = sequences
        super().play(sequences, rng)

    def release(self, sequence: Sequence) -> int:
        place = None if sequence.done else self._fitting(sequence)
        if place is None:
            return super().release(sequence)
        length = len(self._known[place][1])
        kept = sequence.blocks[: length // self.block_size]
        sequence.blocks = sequence.blocks[len(kept) :]
        slot = super().release(sequence)
        sequence.blocks, sequence.computed, sequence.snapshot = kept, length, place
        return slot

    def _begin_anew(self, live: list[Sequence]) -> None:
        self._known.clear()
        super()._begin_anew(live)
        for sequence in live:
            self.free_blocks += sequence.blocks
            sequence.blocks, sequence.computed, sequence.snapshot = [], 0, None

    def _span(self, sequence: Sequence, chunk: int, admitted: list[Admit], appended: list[Append]) -> Span:
        place = sequence.snapshot if sequence.slot is None else None
        span = super()._span(sequence, chunk, admitted, appended)
        if place is not None:
            admitted[-1] = replace(admitted[-1], snapshot=place)
            sequence.snapshot = None
            self.num_resumed += 1
            self.num_behind_drafts += place in self._behind_drafts
        return span

    def _take(self, outcome: Any, live: list[Sequence]) -> list[int]:
        before = {sequence.slot: (sequence, len(sequence.tokens)) for sequence in live}
        retired = super()._take(outcome, live)
        for slot, place in self._asked.items():
            sequence, length = before[slot]
            end = self._ends[slot]
            if slot in self._opened:
                reached = (len(sequence.tokens) - 1) // self.block_size * self.block_size
                end = reached if reached >= length else 0
            self._known.pop(place, None)
            self._behind_drafts.discard(place)
            if end and end % self.block_size == 0:
                self._known[place] = sequence.adapter_id, tuple(sequence.tokens[:end])
                if slot in outcome.num_drafted:
                    self._behind_drafts.add(place)
        return retired

    def _fitting(self, sequence: Sequence) -> int | None:
        """A snapshot that the sequence can go on from, if there is one that nobody waits for."""
        held = {other.snapshot for other in self._waiting()}
        for place, (adapter_id, tokens) in self._known.items():
            own = tuple(sequence.tokens[: len(tokens)])
            is_behind = len(tokens) < len(sequence.tokens) and len(tokens) <= sequence.computed
            if place not in held and is_behind and (adapter_id, tokens) == (sequence.adapter_id, own):
                return place
        return None

    def _waiting(self) -> list[Sequence]:
        return [sequence for sequence in self._sequences if sequence.snapshot is not None]


class Foreseeing(Drafter):
    """Knows how texts go on, but is wrong about a token now and then, of all ranks about the same."""

    def __init__(self, engine: Engine, texts: Many[list[int]]) -> None:
        self._slots = engine.slots
        self._texts = texts

    def draft(self, spans: Many[Span], wanted: Mapping[int, int]) -> Drafts:
        known = self._slots.rows.known_tokens({slot: self._slots.states[slot].length for slot in wanted})
        return {slot: self._guess(known[slot].tolist(), most) for slot, most in wanted.items()}

    def _guess(self, known: list[int], most: int) -> tuple[int, ...]:
        rng = random.Random(hash(tuple(known)))
        text = next((text for text in self._texts if text[: len(known)] == known), known)
        right = text[len(known) : len(known) + most]
        return tuple(token if rng.random() < 0.8 else rng.randrange(3, 300) for token in right)
