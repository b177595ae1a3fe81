"""Finds, in rows of logits, the tokens that are likeliest to be chosen, on a CPU: by the noise of each position the
first is the one that the row itself would choose, the second what it would choose without that, and so on.

How likely each is to be what the model chooses is an estimate: its probability where the slot takes the most likely
token, and its share of e^score where noise is part of the scores. It decides what is drafted, never what is generated.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from penstock_kernels.native.choose import SlotRows, choose
from penstock_kernels.reference.noise import gumbel_of

from penstock_server.engine.plan import Numbers
from penstock_server.engine.rows import Column
from penstock_server.engine.slots import Slots
from penstock_server.network.distributed import Group

# Ranks tell each other a chance as a whole number of parts, of which 1.0 has so many.
_PARTS = 1 << 30
_Chances = np.ndarray[Any, np.dtype[np.float64]]


class Guess(NamedTuple):
    """A token, and how likely it is the one that the model chooses."""

    token_id: int
    chance: float


class Likeliest:
    """So many tokens of each row. `compute` may be recorded; `read` follows it."""

    def __init__(self, slots: Slots, group: Group, count: int, most_rows: int) -> None:
        self.count = count
        self._slots = slots
        self._group = group
        self._ids = torch.zeros(count, most_rows, dtype=torch.int64)
        self._logprobs = torch.zeros(count, most_rows)
        rows = slots.rows.kept
        # A token that is chosen here is no token of a slot yet: it is written to one row that stands for all slots.
        unused = torch.zeros(rows.tokens.shape[1], dtype=torch.int32).expand(rows.tokens.shape)
        self._kept = SlotRows(unused, rows.params, rows.seeds)

    def compute(self, logits: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor, draws: bool) -> None:
        """logits: [num_rows, vocab_size]; slots, lengths: [num_rows], as `choose` takes them."""
        num_rows, scores = len(logits), logits.clone()
        for place in range(self.count):
            chosen = choose(scores, slots, lengths, self._kept, draws)
            self._ids[place, :num_rows].copy_(chosen.token_ids)
            self._logprobs[place, :num_rows].copy_(chosen.logprobs)
            scores.scatter_(1, chosen.token_ids.unsqueeze(1), -torch.inf)

    def read(self, slots: Sequence[int], lengths: Sequence[int]) -> list[list[Guess]]:
        """The guesses of each row; all ranks get those of the first rank. The rows are those of `compute`."""
        ids, chances = self._ids[:, : len(slots)], self._chances(slots, lengths)
        numbers = (chances * _PARTS).astype(np.int64)
        if self._group.size > 1:
            flat = (*ids.flatten().tolist(), *numbers.flatten().tolist())
            told = np.array(self._group.gather_numbers(*flat)[0]).reshape(2, self.count, -1)
        else:
            told = np.stack((ids.numpy(), numbers))
        columns = zip(*told.transpose(0, 2, 1).tolist(), strict=True)
        return [
            [Guess(token_id, chance / _PARTS) for token_id, chance in zip(*row, strict=True) if chance > 0]
            for row in columns
        ]

    def _chances(self, slots: Sequence[int], lengths: Sequence[int]) -> _Chances:
        """[count, num_rows]."""
        logprobs = self._logprobs[:, : len(slots)].double().nan_to_num(nan=-math.inf).numpy()
        with np.errstate(invalid="ignore", divide="ignore"):
            chances = np.exp(logprobs)
            for place in range(1, self.count):
                # Each was scored without those before it.
                chances[place] *= np.maximum(0, 1 - chances[:place].sum(axis=0))
            temperatures = self._slots.rows.params[list(slots), Column.TEMPERATURE].numpy()
            drawn = np.flatnonzero(temperatures > 0)
            if len(drawn):
                scores = np.log(chances[:, drawn]) / temperatures[drawn] + self._noise(drawn, slots, lengths)
                weights = np.exp(scores - scores.max(axis=0))
                chances[:, drawn] = weights / weights.sum(axis=0)
        known: _Chances = np.nan_to_num(chances)
        return known

    def _noise(self, drawn: Numbers, slots: Sequence[int], lengths: Sequence[int]) -> Numbers:
        """[count, num_drawn]."""
        rows = drawn.tolist()
        seeds = self._slots.rows.seeds[[slots[row] for row in rows]]
        positions = torch.tensor([lengths[row] for row in rows])
        return gumbel_of(seeds, positions, self._ids[:, rows].T.contiguous()).T.numpy()
