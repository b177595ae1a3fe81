"""Which positions of the cache a draft model or a head has computed, too: its keys and values lie under the same block
numbers.

It need not follow every step: where nothing is drafted, it computes nothing, and what it lacks is computed before it
drafts again. So it is known for each slot how far its plane is filled. For each block it is known whether it is whole,
because a sequence may begin with blocks that others computed.
"""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np

from penstock_server.engine.limits import Limits
from penstock_server.engine.plan import Append, Numbers, Plan


class DraftPlane:
    """Tracks which positions of the drafter's plane are filled, by slot and by block."""

    def __init__(self, limits: Limits) -> None:
        self._block_size = limits.block_size
        self._tables: Numbers = np.zeros((limits.num_slots, limits.max_blocks), dtype=np.int64)
        self._num_blocks: Numbers = np.zeros(limits.num_slots, dtype=np.int64)
        # Leading positions that are filled, and those that others computed before the slot began.
        self._filled: Numbers = np.zeros(limits.num_slots, dtype=np.int64)
        self._inherited: Numbers = np.zeros(limits.num_slots, dtype=np.int64)
        self._is_whole = np.zeros(limits.num_blocks, dtype=bool)
        # Slots with blocks, of which no span was computed yet: what these blocks hold is not known.
        self._admitted: set[int] = set()
        # Blocks that slots got in steps without drafts. They are noted before anything is drafted or a slot changes
        # hands.
        self._late: list[Sequence[Append]] = []

    def clear(self) -> None:
        """All slots are free; blocks stay what they are."""
        self._admitted.clear()
        self._append_late(lambda _slot: False)

    def follow(self, plan: Plan, is_valid: Callable[[int], bool]) -> None:
        """Apply the changes of a plan; slots that were refused are no longer followed."""
        if not (plan.open_drafts or plan.admitted or plan.retired or self._admitted):
            if plan.appended:
                self._late.append(plan.appended)
            return
        self._append_late(lambda slot: slot not in plan.retired and is_valid(slot))
        for admit in plan.admitted:
            if is_valid(admit.slot):
                self.admit(admit.slot, admit.block_ids)
        for append in plan.appended:
            if is_valid(append.slot):
                self.append(append.slot, append.block_ids)
        if self._admitted:
            for span in plan.spans:
                self.begin(span.slot, span.start)

    def forget(self, blocks: Sequence[int]) -> None:
        """Others wrote these blocks, and nothing to the plane."""
        self._is_whole[list(blocks)] = False

    def admit(self, slot: int, block_ids: list[int]) -> None:
        """A slot begins with these blocks."""
        self._num_blocks[slot] = 0
        self._filled[slot] = self._inherited[slot] = 0
        self._hold(slot, block_ids)
        self._admitted.add(slot)

    def append(self, slot: int, block_ids: list[int]) -> None:
        """A slot gets blocks that hold nothing of it."""
        self._is_whole[block_ids] = False
        self._hold(slot, block_ids)

    def begin(self, slot: int, start: int) -> None:
        """A span of a slot begins here; from its first one on, all its blocks are its own."""
        if slot not in self._admitted:
            return
        self._admitted.remove(slot)
        blocks = self._tables[slot, : self._num_blocks[slot]]
        num_shared = min(start // self._block_size, len(blocks))
        self._is_whole[blocks[num_shared:]] = False
        shared = self._is_whole[blocks[:num_shared]]
        num_whole = num_shared if shared.all() else int(shared.argmin())
        self._filled[slot] = num_whole * self._block_size
        self._inherited[slot] = num_shared * self._block_size

    def filled(self, slot: int) -> int:
        """How many leading positions of a slot are filled."""
        return int(self._filled[slot])

    def first_own(self, slot: int) -> int:
        """The first position that no other sequence may read."""
        return max(self.filled(slot), int(self._inherited[slot]))

    def catch_up(self, slot: int) -> None:
        """Shared blocks that others have filled since the slot began are filled for it, too."""
        if self._filled[slot] >= self._inherited[slot]:
            return
        first = self.filled(slot) // self._block_size
        num_shared = int(self._inherited[slot]) // self._block_size
        are_whole = self._is_whole[self._tables[slot, first:num_shared]]
        num_whole = len(are_whole) if are_whole.all() else int(are_whole.argmin())
        self._filled[slot] = max(self.filled(slot), (first + num_whole) * self._block_size)

    def skip(self, slot: int, end: int) -> None:
        """Positions of a slot before this one are not to be filled any more; their blocks are not whole by that."""
        self._filled[slot] = end

    def fill(self, slot: int, end: int) -> None:
        """All positions of a slot before this one are filled."""
        whole = slice(self.filled(slot) // self._block_size, end // self._block_size)
        self._is_whole[self._tables[slot, whole]] = True
        self._filled[slot] = end

    def _append_late(self, is_valid: Callable[[int], bool]) -> None:
        """Slots may have been refused or retired since they got these blocks, or because of them."""
        for append in chain.from_iterable(self._late):
            blocks = [block for block in append.block_ids if block < len(self._is_whole)]
            self._is_whole[blocks] = False
            if is_valid(append.slot):
                self._hold(append.slot, blocks)
        self._late.clear()

    def _hold(self, slot: int, block_ids: list[int]) -> None:
        first = int(self._num_blocks[slot])
        self._tables[slot, first : first + len(block_ids)] = block_ids
        self._num_blocks[slot] = first + len(block_ids)
