"""The number by which some models multiply what leaves a layer."""

from collections.abc import Iterator

import torch
from torch import nn

from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class LayerScale(nn.Module):
    """One number, by which what leaves a layer is multiplied."""

    weight: torch.Tensor

    def __init__(self, name: str, size: int, placement: Placement) -> None:
        super().__init__()
        self.name = name
        # The number for each of the hidden states, as products of rows take it.
        self.register_buffer("weight", placement.empty(size))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """x, which is still to be added to the residual sum; that is multiplied in place."""
        factors = self.weight.expand_as(x)
        residual.mul_(factors)
        return x * factors

    def pieces(self, has: Has) -> Iterator[Piece]:
        yield Piece(self.name, (1,), self, "weight", (slice(0, 1),), slice(0, len(self.weight)))
