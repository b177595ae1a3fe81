"""The states of recurrent layers: a row for each slot, a spare one, which pads steps of fixed size, rows for states of
which it is not known yet whether a slot goes on from them, and a row for each snapshot: the state of a slot as it was
once.

A row is not emptied when its slot is given out again: the first span of a sequence counts whatever is there as zero.
"""

from typing import Any, NamedTuple

import torch
from penstock_kernels import copy_blocks

from penstock_server.architectures.recurrent_spec import KeptShape, StateShape
from penstock_server.network.upload import to_device


class LayerState(NamedTuple):
    """One layer's rows: [num_rows, conv_len, num_channels], and [num_rows, *matrices] in float32."""

    conv: torch.Tensor
    matrices: torch.Tensor


class StateRows(NamedTuple):
    """How many rows there are of each kind. Those of slots come first: their numbers are those of the slots."""

    num_slots: int
    num_drafts: int = 0
    num_snapshots: int = 0

    def draft(self, number: int) -> int:
        """The row of a state behind a token that was drafted behind."""
        return self.num_slots + 1 + number

    def snapshot(self, number: int) -> int:
        """The row of a snapshot."""
        return self.draft(self.num_drafts) + number

    @property
    def total(self) -> int:
        return self.snapshot(self.num_snapshots)


class States:
    """All layers' rows. The memory is not initialised, as that of the cache."""

    def __init__(self, shape: StateShape, rows: StateRows, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = rows
        sizes = (shape.num_layers, rows.total)
        self.conv = torch.empty(*sizes, shape.conv_len, shape.num_channels, dtype=dtype, device=device)
        self.matrices = torch.empty(*sizes, *_matrices(shape), dtype=torch.float32, device=device)
        self.layers = [LayerState(*layer) for layer in zip(self.conv, self.matrices, strict=True)]

    def keep(self, slots: list[int], snapshots: list[int]) -> None:
        """Copy the states of slots to snapshots, in pairs."""
        self.copy(slots, self._rows_of(snapshots))

    def restore(self, snapshots: list[int], slots: list[int]) -> None:
        """Copy snapshots to the states of slots, in pairs."""
        self.copy(self._rows_of(snapshots), slots)

    def _rows_of(self, snapshots: list[int]) -> list[int]:
        first = self.rows.snapshot(0)
        return [first + snapshot for snapshot in snapshots]

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows to rows, in pairs; no row is in both lists."""
        index = to_device([sources, targets], torch.int64, self.conv.device)
        for rows in (self.conv, self.matrices):
            if rows.numel():
                num_layers, num_rows = rows.shape[:2]
                pool = rows.view(num_layers, 1, num_rows, -1, 1, 1)
                copy_blocks(pool, index[0], index[1])

    def forget(self, slots: list[int]) -> None:
        """Nothing: see above."""

    def saved(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """A copy of the states of slots, for `put_back`."""
        return [rows[:, slots] for rows in (self.conv, self.matrices)]

    def put_back(self, slots: torch.Tensor, saved: list[torch.Tensor]) -> None:
        """Make the states of slots what they were."""
        for rows, before in zip((self.conv, self.matrices), saved, strict=True):
            rows[:, slots] = before

    def spoil(self) -> None:
        """Make all of it NaN."""
        self.conv.fill_(torch.nan)
        self.matrices.fill_(torch.nan)


class KeptStates:
    """The states of slots that are objects of the model's own code. A slot that has none is at its beginning.

    There are no snapshots of them: a copy has all positions, which the router would count once for all who share them.
    """

    def __init__(self) -> None:
        self.of_slot: dict[int, Any] = {}

    def forget(self, slots: list[int]) -> None:
        """Free what these slots keep."""
        for slot in slots:
            self.of_slot.pop(slot, None)

    def spoil(self) -> None:
        """Make all of it unreadable."""
        self.of_slot.clear()


AnyShape = StateShape | KeptShape
AnyStates = States | KeptStates


def make_states(shape: AnyShape, rows: StateRows, dtype: torch.dtype, device: torch.device) -> AnyStates:
    """The states of slots and snapshots for a model of this shape."""
    return KeptStates() if isinstance(shape, KeptShape) else States(shape, rows, dtype, device)


def state_bytes(shape: AnyShape | None, dtype: torch.dtype) -> int:
    """Bytes of what one slot keeps on this rank, whatever its length."""
    if shape is None:
        return 0
    if isinstance(shape, KeptShape):
        return shape.num_bytes
    numbers = 1
    for size in _matrices(shape):
        numbers *= size
    each = shape.conv_len * shape.num_channels * dtype.itemsize + numbers * torch.float32.itemsize
    return shape.num_layers * each


def _matrices(shape: StateShape) -> tuple[int, ...]:
    return shape.matrices or (0,)
