"""The driver of the other tests, whose decodes are open spans now and then, and whose shard may lose all it holds."""

import random
from collections.abc import Callable
from typing import Any

from driver import Driver, Execute, Sequence
from open_spans import MAX_DRAFTS
from penstock_server.engine.plan import Admit, Append, Plan, Span

# How likely a step is followed by a shard that begins anew.
_LOSS = 0.03


class DraftingDriver(Driver):
    """Runs sequences in a random mixture: chunks, waits, preemptions, drafts, losses."""

    def __init__(self, execute: Execute, lose: Callable[[], None], num_slots: int, num_blocks: int) -> None:
        """`lose`: what makes the shard forget all."""
        super().__init__(execute, num_slots, num_blocks)
        self.num_drafted = self.num_right = 0
        self._lose = lose
        self._rng = random.Random(0)
        self._open: dict[int, int] = {}

    def play(self, sequences: list[Sequence], rng: random.Random) -> None:
        """Run all to their ends, or behind them: a step may give more than they want."""
        self._rng = rng
        retired: list[int] = []
        while live := [sequence for sequence in sequences if not sequence.done]:
            retired = self._turn(live, rng, True, 0, retired)
            if rng.random() < _LOSS:
                self._begin_anew(live)
                retired = []
        if retired:
            self.send(Plan(self.epoch, 0, retired=retired))

    def send(self, plan: Plan) -> Any:
        plan.open_drafts.update(self._open)
        self._open.clear()
        return super().send(plan)

    def _begin_anew(self, live: list[Sequence]) -> None:
        """Starts a new epoch as after a crash: sequences go on from their tokens."""
        self.epoch += 1
        self._lose()
        for sequence in live:
            if sequence.slot is not None:
                self.release(sequence)

    def _span(self, sequence: Sequence, chunk: int, admitted: list[Admit], appended: list[Append]) -> Span:
        slot, length = sequence.slot, len(sequence.tokens)
        if slot is None or sequence.computed < length - 1 or self._rng.random() < 0.2:
            return super()._span(sequence, chunk, admitted, appended)
        self._open[slot] = self._rng.randint(1, MAX_DRAFTS)
        needed = -(-(length + self._open[slot]) // self.block_size) - len(sequence.blocks)
        blocks = [self.free_blocks.pop() for _ in range(needed)]
        sequence.blocks += blocks
        if blocks:
            appended.append(Append(slot, blocks))
        return Span(slot, sequence.computed, 1)

    def _take(self, outcome: Any, live: list[Sequence]) -> list[int]:
        before = [(sequence, sequence.slot, len(sequence.tokens)) for sequence in live]
        retired = super()._take(outcome, live)
        for sequence, slot, length in before:
            gained = len(sequence.tokens) - length
            if slot in outcome.num_drafted:
                self.num_drafted += outcome.num_drafted[slot]
                self.num_right += gained - 1
            if sequence.slot is not None and (gained or slot in outcome.late_slots):
                sequence.computed = len(sequence.tokens) - 1
        return retired
