"""The pass of a head that guesses several tokens at once, on a CPU: one recorded call, with all choices.

Drafts are a chain, or a tree.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, product

import torch
from penstock_kernels.native.choose import choose

from penstock_server.engine.guessed import fitted
from penstock_server.engine.likeliest import Likeliest
from penstock_server.engine.recordings import Ahead
from penstock_server.engine.slots import Slots
from penstock_server.engine.told_pass import Shared, ToldPass, Wanted
from penstock_server.engine.tree_growth import product_tree
from penstock_server.network.distributed import Group
from penstock_server.network.eagle import EagleHead
from penstock_server.network.kv_cache import KVCache


class RecordedAtOnce(ToldPass):
    """A recording for each number of positions, and of drafts among them. A slot's run has stand-ins for its drafts."""

    def __init__(self, head: EagleHead, cache: KVCache, slots: Slots) -> None:
        super().__init__("passes of a head that guesses at once", head, cache, slots)
        # Of the row that guesses each draft: its number, slot and position; and the position of the draft.
        self.places = Shared(4, self.most_rows)

    def guess(self, wanted: Sequence[Wanted], draws: bool) -> list[tuple[int, ...]]:
        self.run(*self.place(wanted), draws)
        return self.drafts(wanted)

    def ahead(self, count: int, max_drafts: int) -> Iterator[Ahead]:
        self.told.fill(self.slots.rows.spare, 0)
        self.places.fill(0, self.slots.rows.spare, 0, 0)
        for number in range(max_drafts, 0, -1):
            num_drafts = count * number
            most = min(num_drafts + count * max_drafts, self.most_rows)
            for num_rows, draws in product(range(num_drafts, most + 1), (False, True)):
                yield partial(self.run, num_rows, num_drafts, draws)

    def run(self, num_rows: int, num_drafts: int, draws: bool) -> None:
        """Compute the pass over `num_rows` positions that were written, and choose the tokens."""
        key = (num_rows, num_drafts, draws)
        self.recordings.run(key, lambda: self.compute_choices(num_rows, num_drafts, draws))

    def place(self, wanted: Sequence[Wanted]) -> tuple[int, int]:
        """Write the arguments of the pass. Returns the numbers of its positions and of its drafts."""
        ends, places = self.begin(wanted), []
        for (slot, length, _run, number), end in zip(wanted, ends, strict=True):
            places += [
                (end - number + draft, slot, length - 2 + draft, length + draft) for draft in range(number)
            ]
        self.places.here[:, : len(places)] = list(zip(*places, strict=True))
        return ends[-1], len(places)

    def logits(self, num_rows: int, num_drafts: int) -> torch.Tensor:
        """The logits of each draft; computed in a recording."""
        hidden = self.compute_told(num_rows, self.places.numbers[:3, :num_drafts])
        return fitted(self.head.logits(hidden), self.slots.limits.vocab_size)

    def compute_choices(self, num_rows: int, num_drafts: int, draws: bool) -> None:
        """Choose a token for each draft; computed in a recording."""
        slots, _positions, lengths = self.places.numbers[1:, :num_drafts]
        choose(self.logits(num_rows, num_drafts), slots, lengths, self.slots.rows.kept, draws)


class RecordedTreesAtOnce(RecordedAtOnce):
    """The pass with several guesses for each token, none of which depends on the others: the likeliest trees."""

    def __init__(self, head: EagleHead, cache: KVCache, slots: Slots, group: Group, branches: int) -> None:
        """`branches`: how many guesses there are for a token."""
        super().__init__(head, cache, slots)
        self._likeliest = Likeliest(slots, group, branches, self.most_rows)

    def guess_trees(
        self, wanted: Sequence[Wanted], sizes: Sequence[int], draws: bool
    ) -> list[tuple[int, ...]]:
        """The tree of each slot, with as many tokens as `sizes` says. It is at most as deep as its slot has drafts."""
        num_rows, num_drafts = self.place(wanted)
        self.run(num_rows, num_drafts, draws)
        slots, _positions, lengths = self.places.here[1:, :num_drafts].tolist()
        levels = iter(self._likeliest.read(slots, lengths))
        return [
            product_tree(list(islice(levels, each.number)), size)
            for each, size in zip(wanted, sizes, strict=True)
        ]

    def compute_choices(self, num_rows: int, num_drafts: int, draws: bool) -> None:
        slots, _positions, lengths = self.places.numbers[1:, :num_drafts]
        self._likeliest.compute(self.logits(num_rows, num_drafts), slots, lengths, draws)
