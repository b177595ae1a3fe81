"""The states of recurrent layers: a row for each slot, a spare one, which pads steps of fixed size, and a row for each
snapshot: the state of a slot as it was once.

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


class States:
    """All layers' rows. The memory is not initialised, as that of the cache."""

    def __init__(
        self, shape: StateShape, num_slots: int, num_snapshots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._first_snapshot = num_slots + 1
        rows = (shape.num_layers, self._first_snapshot + num_snapshots)
        self.conv = torch.empty(*rows, shape.conv_len, shape.num_channels, dtype=dtype, device=device)
        self.matrices = torch.empty(*rows, *_matrices(shape), dtype=torch.float32, device=device)
        self.layers = [LayerState(*layer) for layer in zip(self.conv, self.matrices, strict=True)]

    def keep(self, slots: list[int], snapshots: list[int]) -> None:
        """Copy the states of slots to snapshots, in pairs."""
        self._copy(slots, [self._first_snapshot + snapshot for snapshot in snapshots])

    def restore(self, snapshots: list[int], slots: list[int]) -> None:
        """Copy snapshots to the states of slots, in pairs."""
        self._copy([self._first_snapshot + snapshot for snapshot in snapshots], slots)

    def _copy(self, sources: list[int], targets: list[int]) -> None:
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
    """What slots keep in objects of the code that computes their model. A slot that has none is at its beginning.

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


def make_states(
    shape: AnyShape, num_slots: int, num_snapshots: int, dtype: torch.dtype, device: torch.device
) -> AnyStates:
    """What slots and snapshots keep of a model of this shape."""
    if isinstance(shape, KeptShape):
        return KeptStates()
    return States(shape, num_slots, num_snapshots, dtype, device)


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
