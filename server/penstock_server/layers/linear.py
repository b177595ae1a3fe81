"""Linear layers divided among ranks: by output columns (several projections fused into one product) or input rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from penstock_server.layers.placement import INVARIANT_ROWS, Placement
from penstock_server.weights import Piece


@dataclass(frozen=True, slots=True)
class Projection:
    """One projection of the checkpoint, `name.weight` and perhaps `name.bias`, and its whole output size."""

    name: str
    out_features: int


class ColumnLinear(nn.Module):
    """Several projections of one input in one matrix product; each rank computes its share of every one's outputs.

    [num_tokens, in_features] to [num_tokens, sum of the shares], projections in order.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self, projections: list[Projection], in_features: int, bias: bool, placement: Placement
    ) -> None:
        super().__init__()
        self.projections = projections
        self.in_features = in_features
        self.placement = placement
        group = placement.group
        self.shares = [group.share(projection.out_features, projection.name) for projection in projections]
        self.register_buffer("weight", torch.empty(sum(self.shares), in_features, dtype=placement.dtype))
        self.register_buffer("bias", torch.empty(sum(self.shares), dtype=placement.dtype) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.weight, self.bias, self.placement)

    def pieces(self) -> Iterator[Piece]:
        row = 0
        for projection, share in zip(self.projections, self.shares, strict=True):
            start = self.placement.group.rank * share
            bounds = (0, start, start + share, row, share)
            shape = (projection.out_features, self.in_features)
            yield Piece(f"{projection.name}.weight", shape, self, "weight", *bounds)
            if self.bias is not None:
                yield Piece(f"{projection.name}.bias", shape[:1], self, "bias", *bounds)
            row += share


class RowLinear(nn.Module):
    """A projection whose input is divided: each rank multiplies its share, the sum over ranks is the output.

    [num_tokens, in_features / size] to [num_tokens, out_features], the same on every rank.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, projection: Projection, in_features: int, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.projection = projection
        self.in_features = in_features
        self.placement = placement
        self.share = placement.group.share(in_features, f"input of {projection.name}")
        self.register_buffer(
            "weight", torch.empty(projection.out_features, self.share, dtype=placement.dtype)
        )
        self.register_buffer(
            "bias", torch.empty(projection.out_features, dtype=placement.dtype) if bias else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.placement.group.size == 1:
            return multiply(x, self.weight, self.bias, self.placement)
        # The bias joins after the sum, else it would count once per rank.
        partial = self.placement.group.all_reduce(multiply(x, self.weight, None, self.placement))
        return partial if self.bias is None else partial.add_(self.bias)

    def pieces(self) -> Iterator[Piece]:
        start = self.placement.group.rank * self.share
        rows = self.projection.out_features
        shape = (rows, self.in_features)
        yield Piece(
            f"{self.projection.name}.weight", shape, self, "weight", 1, start, start + self.share, 0, rows
        )
        if self.bias is not None:
            yield Piece(f"{self.projection.name}.bias", shape[:1], self, "bias", 0, 0, rows, 0, rows)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, placement: Placement
) -> torch.Tensor:
    """`x @ weight.T + bias`, with rows padded when a row's result must not depend on how many there are."""
    missing = -x.shape[0] % INVARIANT_ROWS
    if not placement.batch_invariant or missing == 0:
        return F.linear(x, weight, bias)
    return F.linear(F.pad(x, (0, 0, 0, missing)), weight, bias)[: x.shape[0]]
