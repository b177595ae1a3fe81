"""The states of recurrent layers: a row for each slot, and a spare one, which pads steps of fixed size.

A row is not emptied when its slot is given out again: the first span of a sequence counts whatever is there as zero.
"""

from typing import NamedTuple

import torch

from penstock_server.architectures.recurrent_spec import StateShape


class LayerState(NamedTuple):
    """One layer's rows: [num_rows, conv_len, num_channels], and [num_rows, *matrices] in float32."""

    conv: torch.Tensor
    matrices: torch.Tensor


class States:
    """All layers' rows. The memory is not initialised, as that of the cache."""

    def __init__(self, shape: StateShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        rows = (shape.num_layers, num_slots + 1)
        self.conv = torch.empty(*rows, shape.conv_len, shape.num_channels, dtype=dtype, device=device)
        self.matrices = torch.empty(*rows, *_matrices(shape), dtype=torch.float32, device=device)
        self.layers = [LayerState(*layer) for layer in zip(self.conv, self.matrices, strict=True)]

    def spoil(self) -> None:
        """Make all of it NaN."""
        self.conv.fill_(torch.nan)
        self.matrices.fill_(torch.nan)


def state_bytes(shape: StateShape | None, num_slots: int, dtype: torch.dtype) -> int:
    """Bytes of the states of so many slots on this rank."""
    if shape is None:
        return 0
    numbers = 1
    for size in _matrices(shape):
        numbers *= size
    each = shape.conv_len * shape.num_channels * dtype.itemsize + numbers * torch.float32.itemsize
    return shape.num_layers * (num_slots + 1) * each


def _matrices(shape: StateShape) -> tuple[int, ...]:
    return shape.matrices or (0,)
