"""The passes of a head with keys and values on a CPU, as recorded calls: one over what it was told, and one for all
tokens that are drafted behind that, with the choice of each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from penstock_kernels.native.choose import choose

from penstock_server.engine.decode_graphs import decode_input
from penstock_server.engine.guessed import fitted
from penstock_server.engine.kept_states import Run
from penstock_server.engine.plan import Numbers
from penstock_server.engine.recordings import Recordings
from penstock_server.engine.slots import Slots
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead

# Tokens of a slot, and positions of a first pass: more are computed op by op.
MOST_PASSES, MOST_ROWS = 16, 64


class Wanted(NamedTuple):
    """Of a slot: how many tokens it has, what the head was told of the last ones but one, and how many it drafts."""

    slot: int
    length: int
    run: Run
    number: int


class RecordedPasses:
    """A recording for each number of positions in the first pass, and for each number of slots and passes."""

    def __init__(self, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        self._head = head
        self._cache = cache
        self._slots = slots
        most = slots.limits.num_slots
        self._given = torch.zeros(MOST_ROWS, head.returns.size, dtype=head.dtype)
        self._returned = torch.zeros_like(self._given)
        self._starts = torch.arange(max(MOST_ROWS, most) + 1, dtype=torch.int32)
        # Slots and positions of the first pass; of each slot its last row there; slots, positions and lengths of each
        # pass, which are those of the spare row where a slot has its drafts.
        self._first = _Shared(2, MOST_ROWS)
        self._last = _Shared(1, most)
        self._passes = _Shared(3 * MOST_PASSES, most)
        self._recordings = Recordings("passes of a head")

    def takes(self, wanted: Sequence[Wanted]) -> bool:
        """Whether so many positions and drafts have a place here."""
        num_rows = sum(len(each.run.states) for each in wanted)
        return num_rows <= MOST_ROWS and max(each.number for each in wanted) <= MOST_PASSES

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        """The tokens of each slot, which has them in its row behind its length."""
        num_rows = self._begin(wanted)
        self._recordings.run(("told", num_rows), lambda: self._compute_first(num_rows))
        count, num_passes = len(wanted), max(each.number for each in wanted)
        self._write_passes(wanted, num_passes)
        key = ("drafts", count, num_passes, draws)
        self._recordings.run(key, lambda: self._compute_drafts(count, num_passes, draws))
        tokens = self._slots.rows.tokens
        return [tuple(tokens[each.slot, each.length : each.length + each.number].tolist()) for each in wanted]

    def _begin(self, wanted: Sequence[Wanted]) -> int:
        """Write what the first pass takes; how many positions it has."""
        end = 0
        for number, (slot, _length, run, _) in enumerate(wanted):
            begin, end = end, end + len(run.states)
            self._given[begin:end].copy_(run.states)
            self._first.here[0, begin:end] = slot
            self._first.here[1, begin:end] = range(run.start, run.end)
            self._last.here[0, number] = end - 1
        return end

    def _write_passes(self, wanted: Sequence[Wanted], num_passes: int) -> None:
        spare = (self._slots.rows.spare, 0, 0)
        for done in range(num_passes):
            places = [
                (slot, length - 2 + done, length + done) if done < number else spare
                for slot, length, _run, number in wanted
            ]
            self._passes.here[3 * done : 3 * done + 3, : len(wanted)] = list(zip(*places, strict=True))

    def _compute_first(self, num_rows: int) -> None:
        slots, positions = self._first.numbers[:, :num_rows]
        self._returned[:num_rows].copy_(self._pass(slots, positions, self._given[:num_rows]))

    def _compute_drafts(self, count: int, num_passes: int, draws: bool) -> None:
        hidden = self._returned.index_select(0, self._last.numbers[0, :count])
        for done in range(num_passes):
            slots, positions, lengths = self._passes.numbers[3 * done : 3 * done + 3, :count]
            if done:
                hidden = self._pass(slots, positions, self._head.following(hidden))
            logits = fitted(self._head.logits(hidden), self._slots.limits.vocab_size)
            choose(logits, slots, lengths, self._slots.rows.kept, draws)

    def _pass(self, slots: torch.Tensor, positions: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        starts = self._starts[: len(slots) + 1]
        inputs = decode_input(self._slots, slots, positions, starts, joins=True, given=given)
        hidden: torch.Tensor = self._head(inputs, self._cache)
        return hidden


class _Shared:
    """Numbers that the host writes and a recording reads, all of which are valid from the beginning."""

    def __init__(self, *sizes: int) -> None:
        self.numbers = torch.zeros(*sizes, dtype=torch.int64)
        self.here: Numbers = self.numbers.numpy()
