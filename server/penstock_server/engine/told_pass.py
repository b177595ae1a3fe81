"""The pass of a head with keys and values over the hidden states that it was told, that is, got from the model. For
recorded calls on a CPU: what the host writes, and what is computed. `recorded_passes`, `recorded_trees` and
`recorded_at_once` draft behind it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from penstock_server.network.forward_input import ReadRows
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead


class Wanted(NamedTuple):
    """A slot, its number of tokens, the hidden states before its last token, and how many tokens are drafted."""

    slot: int
    length: int
    run: Run
    number: int


class ToldPass:
    """The pass. Subclasses say what is recorded."""

    # The most positions, in all and of one slot. More are computed op by op.
    most_rows = 128
    most_of_slot = 64

    def __init__(self, name: str, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        """`name`: the name of the recordings in the log."""
        self.head = head
        self.slots = slots
        self.recordings = Recordings(name)
        self._states = head.reads.rows(self.most_rows, head.dtype, slots.device)
        # The slot and the position of each row.
        self.told = Shared(2, self.most_rows)
        self._cache = cache
        self._starts = torch.arange(max(self.most_rows, slots.limits.num_slots) + 1, dtype=torch.int32)

    def takes(self, wanted: Sequence[Wanted]) -> bool:
        """Whether these positions and drafts fit."""
        return sum(len(each.run.states) for each in wanted) <= self.most_rows

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        """The tokens drafted for each slot. They are also in its row, behind its length."""
        raise NotImplementedError

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """See `Drafter.ahead`."""
        raise NotImplementedError

    def begin(self, wanted: Sequence[Wanted]) -> list[int]:
        """Write the arguments of the pass. Returns for each slot the row behind its last position."""
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
        read: ReadRows | None = None,
    ) -> torch.Tensor:
        """The head's output for positions of these slots, or for those of `read`. `tree`: as in `decode_input`."""
        starts = self._starts[: len(slots) + 1]
        inputs = decode_input(self.slots, slots, positions, starts, MAX_DECODE_LEN, given, tree)
        hidden: torch.Tensor = self.head(replace(inputs, read=read), self._cache)
        return hidden

    def compute_told(self, num_rows: int, read: torch.Tensor) -> torch.Tensor:
        """The pass over the first `num_rows` positions that were written. Returns the head's output for some of them,
        of which `read` has the number, the slot and the position, [3, num_read]."""
        slots, positions = self.told.numbers[:, :num_rows]
        given = self.head.prepare(self._states[:num_rows])
        num_read = read.shape[1]
        if num_read == num_rows:
            return self.compute(slots, positions, given)
        of_rows = decode_input(self.slots, read[1], read[2], self._starts[: num_read + 1], longest=1)
        return self.compute(slots, positions, given, read=ReadRows(read[0], of_rows))

    def drafts(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """The tokens drafted for each slot, when they are chosen."""
        tokens = self.slots.rows.tokens
        return [tuple(tokens[each.slot, each.length : each.length + each.number].tolist()) for each in wanted]


class KeptPass(ToldPass):
    """Keeps what the head returned for the last position of each slot, from which the next pass goes on."""

    def __init__(self, name: str, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        super().__init__(name, head, cache, slots)
        self._returned = torch.zeros(slots.limits.num_slots, head.returns.size, dtype=head.dtype)
        # Of the last row of each slot: its number, the slot, and the position.
        self._last = Shared(3, slots.limits.num_slots)

    def run_told(self, wanted: Sequence[Wanted]) -> None:
        """Compute the pass over the told states. It is recorded by the number of its rows, so some rows are filled up
        with positions of the spare row."""
        ends, count = self.begin(wanted), len(wanted)
        lasts = [(end - 1, it.slot, it.run.end - 1) for end, it in zip(ends, wanted, strict=True)]
        self._last.here[:, :count] = list(zip(*lasts, strict=True))
        num_rows = _filled_up(ends[-1])
        self.told.here[:, ends[-1] : num_rows] = [[self.slots.rows.spare], [0]]
        self._run_first(num_rows, count)

    def told_ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        """The recordings for `count` slots, each with a token and the drafts before it. One slot alone may have a
        prompt."""
        self.told.fill(self.slots.rows.spare, 0)
        self._last.fill(0, self.slots.rows.spare, 0)
        most = min(count * (max_drafts + 1), self.most_rows) if count > 1 else self.most_of_slot
        sizes = sorted({_filled_up(num_rows) for num_rows in range(count, most + 1)})
        return (partial(self._run_first, num_rows, count) for num_rows in sizes)

    def last_rows(self, count: int) -> torch.Tensor:
        """The pass's output for the last positions of `count` slots."""
        return self._returned[:count]

    def _run_first(self, num_rows: int, count: int) -> None:
        self.recordings.run(("told", num_rows, count), lambda: self._compute_first(num_rows, count))

    def _compute_first(self, num_rows: int, count: int) -> None:
        self._returned[:count].copy_(self.compute_told(num_rows, self._last.numbers[:, :count]))


def _filled_up(num_rows: int) -> int:
    """The number of rows of the recorded pass that computes `num_rows`: few numbers occur, and few rows are added."""
    step = 1 if num_rows <= 8 else 4 if num_rows <= 32 else 16
    return -(-num_rows // step) * step


class Shared:
    """Numbers that the host writes and a recording reads. All of them are valid from the beginning."""

    def __init__(self, *sizes: int) -> None:
        self.numbers = torch.zeros(*sizes, dtype=torch.int64)
        self.here: Numbers = self.numbers.numpy()

    def fill(self, *numbers: int) -> None:
        """Fill each row with one of these numbers."""
        self.here[: len(numbers)] = np.array(numbers)[:, None]
