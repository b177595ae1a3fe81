"""The passes of a head with keys and values on a CPU, as recorded calls: one over the told states (see `told_pass`),
and one that drafts all tokens behind these, and chooses each.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from penstock_kernels.native.choose import choose

from penstock_server.engine.guessed import fitted
from penstock_server.engine.recordings import Ahead
from penstock_server.engine.slots import Slots
from penstock_server.engine.told_pass import KeptPass, Shared, Wanted
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache
from penstock_server.network.mtp import MtpHead

# The most tokens that are drafted for a slot. More are computed op by op.
MOST_PASSES = 16


class RecordedPasses(KeptPass):
    """A recording for some numbers of positions in the first pass, and for each number of slots and passes."""

    def __init__(self, head: EagleHead | MtpHead, cache: KVCache, slots: Slots) -> None:
        super().__init__("passes of a head", head, cache, slots)
        most = slots.limits.num_slots
        # Slots, positions and lengths of each pass. A slot that has all its drafts is replaced by the spare row.
        self._passes = Shared(3 * MOST_PASSES, most)

    def takes(self, wanted: Sequence[Wanted]) -> bool:
        return super().takes(wanted) and max(each.number for each in wanted) <= MOST_PASSES

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        self.run_told(wanted)
        count, num_passes = len(wanted), max(each.number for each in wanted)
        self._write_passes(wanted, num_passes)
        self._run_drafts(count, num_passes, draws)
        return self.drafts(wanted)

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        yield from self.told_ahead(count, max_drafts)
        self._passes.fill(*(self.slots.rows.spare, 0, 0) * MOST_PASSES)
        for num_passes, draws in product(range(1, min(max_drafts, MOST_PASSES) + 1), (False, True)):
            yield partial(self._run_drafts, count, num_passes, draws)

    def _write_passes(self, wanted: Sequence[Wanted], num_passes: int) -> None:
        spare = (self.slots.rows.spare, 0, 0)
        for done in range(num_passes):
            places = [
                (slot, length - 2 + done, length + done) if done < number else spare
                for slot, length, _run, number in wanted
            ]
            self._passes.here[3 * done : 3 * done + 3, : len(wanted)] = list(zip(*places, strict=True))

    def _run_drafts(self, count: int, num_passes: int, draws: bool) -> None:
        key = ("drafts", count, num_passes, draws)
        self.recordings.run(key, lambda: self._compute_drafts(count, num_passes, draws))

    def _compute_drafts(self, count: int, num_passes: int, draws: bool) -> None:
        hidden = self.last_rows(count)
        for done in range(num_passes):
            slots, positions, lengths = self._passes.numbers[3 * done : 3 * done + 3, :count]
            if done:
                hidden = self.compute(slots, positions, self.head.following(hidden))
            logits = fitted(self.head.logits(hidden), self.slots.limits.vocab_size)
            choose(logits, slots, lengths, self.slots.rows.kept, draws)
