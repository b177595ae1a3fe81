"""The pass of a head that guesses several tokens at once, on a CPU: one recorded call, with all choices."""

from collections.abc import Sequence

from penstock_kernels.native.choose import choose

from penstock_server.engine.guessed import fitted
from penstock_server.engine.slots import Slots
from penstock_server.engine.told_pass import Shared, ToldPass, Wanted
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache


class RecordedAtOnce(ToldPass):
    """A recording for each number of positions, and of drafts among them. The runs of slots have their stand-ins."""

    most_rows = 128

    def __init__(self, head: EagleHead, cache: KVCache, slots: Slots) -> None:
        super().__init__("passes of a head that guesses at once", head, cache, slots)
        # Of each draft its row, slot and position.
        self._places = Shared(3, self.most_rows)

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        ends, places = self.begin(wanted), []
        for (slot, length, _run, number), end in zip(wanted, ends, strict=True):
            places += [(end - number + draft, slot, length + draft) for draft in range(number)]
        num_rows, num_drafts = ends[-1], len(places)
        self._places.here[:, :num_drafts] = list(zip(*places, strict=True))
        key = (num_rows, num_drafts, draws)
        self.recordings.run(key, lambda: self._compute(num_rows, num_drafts, draws))
        return self.drafts(wanted)

    def _compute(self, num_rows: int, num_drafts: int, draws: bool) -> None:
        rows, slots, lengths = self._places.numbers[:, :num_drafts]
        hidden = self.compute_told(num_rows).index_select(0, rows)
        logits = fitted(self.head.logits(hidden), self.slots.limits.vocab_size)
        choose(logits, slots, lengths, self.slots.rows.kept, draws)
