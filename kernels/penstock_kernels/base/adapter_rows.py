"""Which adapter each row of a step has: data on the device, and what is made of it once for all layers."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch

Made = TypeVar("Made")

# The most parts into which the length of a layer is divided. Each has a sum of its own for every rank, in 32 bits.
MAX_SPLITS = 8


class AdapterRows:
    """numbers: [num_rows] int64, of each row: an entry of the tables, or -1 for none, which no op checks.

    `room`: ranks that launches have memory for, at most `MAX_SPLITS * room` numbers for each row, whatever the tables
    hold. A captured launch keeps its memory, so it serves tables of ranks up to that. 0: launches are for the tables as
    they are.
    """

    def __init__(self, numbers: torch.Tensor, room: int = 0) -> None:
        self.numbers = numbers
        self.room = room
        self._shared: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: slice | torch.Tensor) -> "AdapterRows":
        """The adapters of some of the rows."""
        return AdapterRows(self.numbers[rows], self.room)

    def each(self, count: int) -> "AdapterRows":
        """The adapters of rows of which each is repeated `count` times, one after the other."""
        return AdapterRows(self.numbers.repeat_interleave(count), self.room)

    def of(self, number: int) -> torch.Tensor:
        """The rows of one adapter, in rising order. On a GPU the host waits for them, once a step."""
        return self.shared(("rows", number), lambda: (self.numbers == number).nonzero().squeeze(1))

    def shared(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make`, which is called once."""
        if key not in self._shared:
            self._shared[key] = make()
        made: Made = self._shared[key]
        return made
