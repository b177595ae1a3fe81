"""Normalisation layers; not divided among ranks, except that heads are."""

from collections.abc import Iterator

import torch
from penstock_kernels import rms_norm
from torch import nn

from penstock_server.layers.placement import Placement
from penstock_server.weights import Piece


class RmsNorm(nn.Module):
    """Root-mean-square norm over the hidden size, fused with the residual addition before it."""

    weight: torch.Tensor

    def __init__(self, name: str, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.name = name
        self.size = size
        self.eps = eps
        self.register_buffer("weight", torch.empty(size, dtype=placement.dtype))

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps, residual)

    def pieces(self) -> Iterator[Piece]:
        yield Piece(self.name, (self.size,), self, "weight", 0, 0, self.size, 0, self.size)


class QueryKeyNorm(nn.Module):
    """Norm of every query and key head in one call: the two weight vectors are repeated, one row per head."""

    weight: torch.Tensor

    def __init__(
        self,
        names: tuple[str, str],
        num_heads: tuple[int, int],
        head_dim: int,
        eps: float,
        placement: Placement,
    ) -> None:
        super().__init__()
        self.names = names
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.eps = eps
        self.register_buffer("weight", torch.empty(sum(num_heads), head_dim, dtype=placement.dtype))

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        return rms_norm(heads, self.weight, self.eps)

    def pieces(self) -> Iterator[Piece]:
        row = 0
        for name, rows in zip(self.names, self.num_heads, strict=True):
            yield Piece(name, (self.head_dim,), self, "weight", 0, 0, self.head_dim, row, rows)
            row += rows
