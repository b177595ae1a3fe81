"""The pass of a head with keys and values over what it was told, for recorded calls on a CPU: what the host writes, and
what is computed. `recorded_passes` and `recorded_at_once` draft behind it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from penstock_kernels.base.attention_spans import MAX_DECODE_LEN

from penstock_server.engine.decode_graphs import decode_input
from penstock_server.engine.kept_states import Run
from penstock_server.engine.plan import Numbers
from penstock_server.engine.recordings import Ahead, Recordings
from penstock_server.engine.slots import Slots
from penstock_server.engine.step import TreeRows
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead


class Wanted(NamedTuple):
    """Of a slot: how many tokens it has, what the head was told of the last ones but one, and how many it drafts."""

    slot: int
    length: int
    run: Run
    number: int


class ToldPass:
    """Over so many positions at most; the recordings are of those who draft."""

    # More positions are computed op by op, in all and of one slot.
    most_rows = 128
    most_of_slot = 64

    def __init__(self, name: str, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        """`name`: what is recorded, for the log."""
        self.head = head
        self.slots = slots
        self.recordings = Recordings(name)
        self._states = head.reads.rows(self.most_rows, head.dtype, slots.device)
        # Slots and positions.
        self.told = Shared(2, self.most_rows)
        self._cache = cache
        self._starts = torch.arange(max(self.most_rows, slots.limits.num_slots) + 1, dtype=torch.int32)

    def takes(self, wanted: Sequence[Wanted]) -> bool:
        """Whether so many positions and drafts have a place here."""
        return sum(len(each.run.states) for each in wanted) <= self.most_rows

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        """The tokens of each slot, which has them in its row behind its length."""
        raise NotImplementedError

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """As `Drafter.ahead`."""
        raise NotImplementedError

    def begin(self, wanted: Sequence[Wanted]) -> list[int]:
        """Write what the pass takes; behind which row the positions of each slot end."""
        ends, end = [], 0
        for slot, _length, run, _number in wanted:
            begin, end = end, end + len(run.states)
            self._states[begin:end].copy_(run.states)
            self.told.here[0, begin:end] = slot
            self.told.here[1, begin:end] = range(run.start, run.end)
            ends.append(end)
        return ends

    def compute(
        self,
        slots: torch.Tensor,
        positions: torch.Tensor,
        given: torch.Tensor,
        tree: TreeRows | None = None,
    ) -> torch.Tensor:
        """What the head returns for positions of these slots. `tree`: as in `decode_input`."""
        starts = self._starts[: len(slots) + 1]
        inputs = decode_input(self.slots, slots, positions, starts, MAX_DECODE_LEN, given, tree)
        hidden: torch.Tensor = self.head(inputs, self._cache)
        return hidden

    def compute_told(self, num_rows: int) -> torch.Tensor:
        """What it returns for the first positions that were written."""
        slots, positions = self.told.numbers[:, :num_rows]
        return self.compute(slots, positions, self.head.prepare(self._states[:num_rows]))

    def drafts(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """The tokens of each slot, once they are chosen."""
        tokens = self.slots.rows.tokens
        return [tuple(tokens[each.slot, each.length : each.length + each.number].tolist()) for each in wanted]


class KeptPass(ToldPass):
    """Of which the last row of each slot is kept, to go on with."""

    def __init__(self, name: str, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        super().__init__(name, head, cache, slots)
        self._returned = torch.zeros(self.most_rows, head.returns.size, dtype=head.dtype)
        # Of each slot its last row.
        self._last = Shared(1, slots.limits.num_slots)

    def run_told(self, wanted: Sequence[Wanted]) -> None:
        """The pass over what it was told, filled up with positions of the spare row, recorded by their number."""
        ends = self.begin(wanted)
        self._last.here[0, : len(ends)] = [end - 1 for end in ends]
        num_rows = _filled_up(ends[-1])
        self.told.here[:, ends[-1] : num_rows] = [[self.slots.rows.spare], [0]]
        self._run_first(num_rows)

    def told_ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """The same for so many slots, each of which was told a token and those drafted before it. One may be told a
        prompt."""
        self.told.fill(self.slots.rows.spare, 0)
        most = min(count * (max_drafts + 1), self.most_rows) if count > 1 else self.most_of_slot
        sizes = sorted({_filled_up(num_rows) for num_rows in range(count, most + 1)})
        return (partial(self._run_first, num_rows) for num_rows in sizes)

    def last_rows(self, count: int) -> torch.Tensor:
        """What the pass returned for the last positions of so many slots; may be recorded."""
        return self._returned.index_select(0, self._last.numbers[0, :count])

    def _run_first(self, num_rows: int) -> None:
        self.recordings.run(("told", num_rows), lambda: self._compute_first(num_rows))

    def _compute_first(self, num_rows: int) -> None:
        self._returned[:num_rows].copy_(self.compute_told(num_rows))


def _filled_up(num_rows: int) -> int:
    """The rows of the pass that is recorded for so many: there are few of these, and they have few rows more."""
    step = 1 if num_rows <= 8 else 4 if num_rows <= 32 else 16
    return -(-num_rows // step) * step


class Shared:
    """Numbers that the host writes and a recording reads, all of which are valid from the beginning."""

    def __init__(self, *sizes: int) -> None:
        self.numbers = torch.zeros(*sizes, dtype=torch.int64)
        self.here: Numbers = self.numbers.numpy()

    def fill(self, *numbers: int) -> None:
        """Write each of these in a whole row."""
        self.here[: len(numbers)] = np.array(numbers)[:, None]
