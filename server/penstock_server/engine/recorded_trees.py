"""The passes of a head with keys and values on a CPU whose drafts are trees: one recorded call over the told states
(see `told_pass`), and one for each depth, over the guesses that are worth going on from.

In the plane of the head, these guesses have places one after the other behind the told positions. The token of a guess
is written behind its place. A guess sees its ancestors only. The next drafts overwrite these places.
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
    # The position of the token that is guessed behind it.
    length: int
    # The row of the pass before whose hidden state it reads.
    given: int


@dataclass(slots=True)
class _Slot:
    """A slot and its tree, which grows to `size` tokens."""

    wanted: Wanted
    size: int
    growth: TreeGrowth
    # By place, the parent's place of each guess that a pass went on from.
    parents: list[int] = field(default_factory=list)
    # The place of each guess that a pass went on from, and its row in the last pass.
    places: dict[int, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    # The guesses of the last pass.
    newest: list[int] = field(default_factory=list)


class RecordedTrees(KeptPass):
    """A recording for some numbers of positions in the first pass, and of guesses in the others."""

    def __init__(
        self, head: EagleHead | MtpHead, cache: KVCache, slots: Slots, group: Group, branches: int
    ) -> None:
        """`branches`: how many guesses there are for a token, and from how many of one depth the next pass goes on."""
        super().__init__("passes of a head for trees", head, cache, slots)
        most = branches * slots.limits.num_slots
        self._branches = branches
        self._hidden = torch.zeros(most, head.returns.size, dtype=head.dtype)
        self._pass = Shared(len(_Row._fields), most)
        self._likeliest = Likeliest(slots, group, branches, most)

    def guess_trees(
        self, wanted: Sequence[Wanted], sizes: Sequence[int], draws: bool
    ) -> list[tuple[int, ...]]:
        """The tree of each slot, with as many tokens as `sizes` says."""
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
        """Give a guess its place, and write its token behind that."""
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
        """Add the guesses that the last pass made to the trees."""
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
