"""The passes of a head with keys and values on a CPU whose drafts are trees: one recorded call over what it was told,
and one for each depth, over the guesses that are worth going on from.

In the plane of the head these lie one after the other behind what it was told, each with its token behind its place,
and see their ancestors alone. The next drafts take their places.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch

from penstock_server.engine.guessed import fitted
from penstock_server.engine.likeliest import Likeliest
from penstock_server.engine.recordings import Ahead
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import TreeRows
from penstock_server.engine.token_tree import ROOT, seen_bits
from penstock_server.engine.told_pass import KeptPass, Shared, Wanted
from penstock_server.engine.tree_growth import TreeGrowth
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead


class _Row(NamedTuple):
    """A guess that a pass goes on from. The fields are the rows of `RecordedTrees._pass`."""

    slot: int
    place: int
    position: int
    seen: int
    # Where the token behind it will be.
    length: int
    # The row of the pass before that returned what it is given.
    given: int


@dataclass(slots=True)
class _Slot:
    """A slot, and how far its tree of so many tokens is."""

    wanted: Wanted
    size: int
    growth: TreeGrowth
    # Of the guesses that were gone on from, each by its place: the place of the one before it on its way.
    parents: list[int] = field(default_factory=list)
    # The place of a guess that was gone on from, and the row of the last pass that it had.
    places: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    # The guesses of the last pass.
    newest: list[int] = field(default_factory=list)


class RecordedTrees(KeptPass):
    """A recording for some numbers of positions in the first pass, and of guesses in the others."""

    def __init__(
        self, head: EagleHead | MtpHead, cache: KVCache, slots: Slots, group: Group, branches: int
    ) -> None:
        """`branches`: guesses for a token, and those of a depth that are gone on from."""
        super().__init__("passes of a head for trees", head, cache, slots)
        most = branches * slots.limits.num_slots
        self._branches = branches
        self._hidden = torch.zeros(most, head.returns.size, dtype=head.dtype)
        self._pass = Shared(len(_Row._fields), most)
        self._likeliest = Likeliest(slots, group, branches, most)

    def guess_trees(
        self, wanted: Sequence[Wanted], sizes: Sequence[int], draws: bool
    ) -> list[tuple[int, ...]]:
        """The tokens of each slot, so many of each."""
        count = len(wanted)
        self.run_told(wanted)
        firsts = [_Row(it.slot, 0, 0, ROOT, it.length, row) for row, it in enumerate(wanted)]
        self._write(firsts)
        self._run_first_choices(count, draws)
        slots = [
            _Slot(it, size, TreeGrowth(), rows={ROOT: row})
            for row, (it, size) in enumerate(zip(wanted, sizes, strict=True))
        ]
        self._grow(slots, [(slot, ROOT) for slot in slots], firsts)
        while going := self._going_on(slots):
            self._pass_over([row for _slot, _number, row in going], draws)
            self._grow(slots, [(slot, number) for slot, number, _row in going], [row for *_, row in going])
        return [slot.growth.likeliest(slot.size) for slot in slots]

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        yield from self.told_ahead(count, max_drafts)
        self._write([_Row(self.slots.rows.spare, 0, 0, ROOT, 0, 0)] * self._branches * count)
        for draws in (False, True):
            yield partial(self._run_first_choices, count, draws)
            for num_rows in range(count, self._branches * count + 1):
                yield partial(self._run_pass, num_rows, draws)

    def _run_first_choices(self, count: int, draws: bool) -> None:
        self.recordings.run(("first", count, draws), lambda: self._choose_first(count, draws))

    def _pass_over(self, rows: Sequence[_Row], draws: bool) -> None:
        self._write(rows)
        self._run_pass(len(rows), draws)

    def _run_pass(self, count: int, draws: bool) -> None:
        self.recordings.run(("pass", count, draws), lambda: self._compute_pass(count, draws))

    def _going_on(self, slots: Sequence[_Slot]) -> list[tuple[_Slot, int, _Row]]:
        """The guesses that the next pass goes on from."""
        found: list[tuple[_Slot, int, _Row]] = []
        for slot in slots:
            # There are blocks for as many places as tokens are drafted.
            most = min(self._branches, slot.size - len(slot.parents))
            numbers = slot.growth.worth_going_on(slot.newest, slot.size, most) if most > 0 else []
            found += [(slot, number, self._placed(slot, number)) for number in numbers]
            slot.rows = {}
            slot.newest = []
        for row, (slot, number, _row) in enumerate(found):
            slot.rows[number] = row
        return found

    def _placed(self, slot: _Slot, number: int) -> _Row:
        """Give a guess its place, and its token the one behind."""
        growth, length, place = slot.growth, slot.wanted.length, len(slot.parents)
        parent = growth.parents[number]
        slot.parents.append(slot.places.get(parent, ROOT))
        slot.places[number] = place
        depth = growth.depth(number)
        self.slots.rows.write_tokens(slot.wanted.slot, length + place, [growth.token_ids[number]])
        return _Row(
            slot.wanted.slot,
            length - 1 + place,
            length - 2 + depth,
            seen_bits(slot.parents, place),
            length + depth,
            slot.rows[parent],
        )

    def _grow(
        self, slots: Sequence[_Slot], owners: Sequence[tuple[_Slot, int]], rows: Sequence[_Row]
    ) -> None:
        """Take in the guesses behind those of the last pass."""
        guesses = self._likeliest.read([row.slot for row in rows], [row.length for row in rows])
        for (slot, number), behind in zip(owners, guesses, strict=True):
            slot.newest += slot.growth.add(number, behind)

    def _write(self, rows: Sequence[_Row]) -> None:
        self._pass.here[:, : len(rows)] = list(zip(*rows, strict=True))

    def _choose_first(self, count: int, draws: bool) -> None:
        self._choose(self.last_rows(count), draws)

    def _compute_pass(self, count: int, draws: bool) -> None:
        slots, places, positions, seen, _lengths, given = self._pass.numbers[:, :count]
        before = self._hidden.index_select(0, given)
        tree = TreeRows(positions, seen.int())
        self._choose(self.compute(slots, places, self.head.following(before), tree), draws)

    def _choose(self, hidden: torch.Tensor, draws: bool) -> None:
        count = len(hidden)
        self._hidden[:count].copy_(hidden)
        slots, *_, lengths, _given = self._pass.numbers[:, :count]
        logits = fitted(self.head.logits(hidden), self.slots.limits.vocab_size)
        self._likeliest.compute(logits, slots, lengths, draws)
