"""Linear layers divided among ranks: by output columns (several projections fused into one product) or input rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from penstock_kernels import linear
from torch import nn

from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Arrange, Has, Piece


@dataclass(frozen=True, slots=True)
class Rows:
    """The outputs `start .. stop` of the `total` of one projection, `name.weight` and perhaps `name.bias`."""

    name: str
    total: int
    start: int
    stop: int
    # Applied to the rows, if their order changes.
    arrange: Arrange | None = None


def share_rows(name: str, total: int, placement: Placement, first: int = 0, of: int | None = None) -> Rows:
    """This rank's part of `total` outputs, which start at `first` of the `of` outputs of a fused projection."""
    share = placement.group.share(total, f"output of {name}")
    start = first + placement.group.rank * share
    return Rows(name, of or total, start, start + share)


class ColumnLinear(nn.Module):
    """Several projections of one input in one matrix product; each rank computes its share of every one's outputs.

    `sources` are the places where the checkpoint may keep them: the first that it has is read. With `transposed`, its
    matrices have inputs first. [num_tokens, in_features] to [num_tokens, sum of the rows], in order.
    """

    # One for each projection where they stay in the files, see `weights.load_weights`.
    weight: torch.Tensor | tuple[torch.Tensor, ...]
    bias: torch.Tensor | None

    def __init__(
        self,
        sources: list[list[Rows]],
        in_features: int,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.sources = sources
        self.in_features = in_features
        self.placement = placement
        self.transposed = transposed
        out_features = sum(rows.stop - rows.start for rows in sources[0])
        self.register_buffer("weight", placement.empty(out_features, in_features))
        self.register_buffer("bias", placement.empty(out_features) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias, self.placement.batch_invariant)

    def pieces(self, has: Has) -> Iterator[Piece]:
        found = (rows for rows in self.sources if all(has(f"{part.name}.weight") for part in rows))
        end = 0
        for rows in next(found, self.sources[0]):
            begin, end = end, end + rows.stop - rows.start
            shape, window, target = (rows.total, self.in_features), (rows.start, rows.stop), (begin, end)
            yield matrix_piece(
                f"{rows.name}.weight", shape, self, window, target, rows.arrange, self.transposed
            )
            if self.bias is not None:
                yield Piece(
                    f"{rows.name}.bias",
                    shape[:1],
                    self,
                    "bias",
                    (slice(*window),),
                    slice(*target),
                    rows.arrange,
                )


def matrix_piece(
    name: str,
    shape: tuple[int, int],
    module: nn.Module,
    window: tuple[int, int],
    target: tuple[int, int],
    arrange: Arrange | None,
    transposed: bool,
) -> Piece:
    """Some outputs of a matrix of `shape`, outputs first, which may be transposed in the checkpoint."""
    everything = slice(0, shape[1])
    if not transposed:
        rows = (slice(*window), everything)
        return Piece(name, shape, module, "weight", rows, slice(*target), arrange, may_stay_apart=True)

    def turn(part: torch.Tensor) -> torch.Tensor:
        return part.T if arrange is None else arrange(part.T.contiguous())

    return Piece(name, shape[::-1], module, "weight", (everything, slice(*window)), slice(*target), turn)


class RowLinear(nn.Module):
    """A projection whose input is divided: each rank multiplies its share, the sum over ranks is the output.

    [num_tokens, in_features / size] to [num_tokens, out_features], the same on every rank.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(
        self,
        name: str,
        in_features: int,
        out_features: int,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.shape = (out_features, in_features)
        self.placement = placement
        self.transposed = transposed
        self.share = placement.group.share(in_features, f"input of {name}")
        self.register_buffer("weight", placement.empty(out_features, self.share))
        self.register_buffer("bias", placement.empty(out_features) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.placement.group.size == 1:
            return linear(x, self.weight, self.bias, self.placement.batch_invariant)
        # The bias is added after the sum, or it would be added once per rank.
        partial = self.placement.group.all_reduce(
            linear(x, self.weight, None, self.placement.batch_invariant)
        )
        return partial if self.bias is None else partial.add_(self.bias)

    def pieces(self, has: Has) -> Iterator[Piece]:
        start = self.placement.group.rank * self.share
        rows, inputs = slice(0, self.shape[0]), slice(start, start + self.share)
        if self.transposed:
            yield Piece(
                f"{self.name}.weight", self.shape[::-1], self, "weight", (inputs, rows), rows, torch.t
            )
        else:
            yield Piece(f"{self.name}.weight", self.shape, self, "weight", (rows, inputs), rows)
        if self.bias is not None:
            yield Piece(f"{self.name}.bias", self.shape[:1], self, "bias", (rows,), rows)
