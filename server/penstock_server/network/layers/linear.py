"""Linear layers divided among ranks: by output columns (several projections fused into one product) or input rows."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from penstock_kernels import (
    AdapterRows,
    AdapterTable,
    InputNorm,
    Matrix,
    fused_linear,
    is_fused,
    linear,
    quantized_linear,
)
from torch import nn

from penstock_server.network.layers.adapted import AdaptedPart, adapt
from penstock_server.network.layers.placement import Placement
from penstock_server.network.quantization.scheme import Arrange, MatrixPart, Source
from penstock_server.network.weights import Has, Piece


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


class Projection(nn.Module):
    """A weight, which may be matrices of few bits, and perhaps a bias."""

    # A tuple, one for each projection, where they stay in the files or are quantized, see `network/weights`.
    weight: torch.Tensor | tuple[torch.Tensor, ...]
    # The matrices in the place of the weight, where any part of it is quantized.
    matrices: tuple[Matrix, ...] | None = None

    def take_matrices(self, attribute: str, found: tuple[Matrix, ...]) -> None:
        """See `TakesMatrices`."""
        self.matrices = found

    def product(self, x: torch.Tensor, bias: torch.Tensor | None, invariant: bool) -> torch.Tensor:
        """`x @ weight.T + bias`."""
        if self.matrices is not None:
            return quantized_linear(x, self.matrices, bias, invariant)
        return linear(x, self.weight, bias, invariant)


class ColumnLinear(Projection):
    """Several projections of one input in one matrix product; each rank computes its share of every one's outputs.

    `sources` are the places where the checkpoint may keep them: the first that it has is read. With `transposed`, its
    matrices have inputs first. `is_sensitive`: they are not quantized at load. [num_tokens, in_features] to
    [num_tokens, sum of the rows], in order.
    """

    bias: torch.Tensor | None

    def __init__(
        self,
        sources: list[list[Rows]],
        in_features: int,
        bias: bool,
        placement: Placement,
        transposed: bool = False,
        is_sensitive: bool = False,
    ) -> None:
        super().__init__()
        self.sources = sources
        self.is_sensitive = is_sensitive
        self.in_features = in_features
        self.placement = placement
        self.transposed = transposed
        self.num_columns = sum(rows.stop - rows.start for rows in sources[0])
        self.register_buffer("weight", placement.empty(self.num_columns, in_features))
        self.register_buffer("bias", placement.empty(self.num_columns) if bias else None)
        self.adapters: AdapterTable | None = None
        self.is_summed = False

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`adapters`: as `ForwardInput.adapters`."""
        output = self.product(x, self.bias, self.placement.batch_invariant)
        return adapt(output, x, adapters, self.adapters)

    def can_fuse(self, x: torch.Tensor, adapters: AdapterRows | None) -> bool:
        """Whether `fused` is for this input: a kernel does it at once."""
        if adapters is not None or self.matrices is not None or self.placement.batch_invariant:
            return False
        return isinstance(self.weight, torch.Tensor) and is_fused(x, self.weight)

    def fused(self, x: torch.Tensor, norm: InputNorm, gated: bool = False) -> torch.Tensor:
        """The product of the norm of x, and its gated activation."""
        assert isinstance(self.weight, torch.Tensor), "asked before"
        return fused_linear(x, self.weight, self.bias, norm, gated)

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        """See `AdaptedLayer`."""
        return [list(self._adapted(rows)) for rows in self.sources]

    def _adapted(self, rows: list[Rows]) -> Iterator[AdaptedPart]:
        end = 0
        for part in rows:
            begin, end = end, end + part.stop - part.start
            shape, inputs = (part.total, self.in_features), slice(0, self.in_features)
            outputs = slice(part.start, part.stop)
            yield AdaptedPart(
                part.name, shape, outputs, inputs, slice(begin, end), part.arrange, self.transposed
            )

    def pieces(self, has: Has) -> Iterator[Piece]:
        # Sources that the checkpoint has go first, for those who ask later.
        self.sources.sort(key=lambda rows: not all(has(f"{part.name}.weight") for part in rows))
        end = 0
        for rows in self.sources[0]:
            begin, end = end, end + rows.stop - rows.start
            shape, window, target = (rows.total, self.in_features), (rows.start, rows.stop), (begin, end)
            source = Source(rows.name, shape, inputs_first=self.transposed, is_sensitive=self.is_sensitive)
            yield matrix_piece(source, self, window, target, rows.arrange)
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
    source: Source,
    module: nn.Module,
    window: tuple[int, int],
    target: tuple[int, int],
    arrange: Arrange | None,
) -> Piece:
    """Some outputs of the matrix of a module."""
    shape = source.shape
    rows, everything, index = slice(*window), slice(0, shape[1]), slice(*target)
    matrices = (MatrixPart(source, rows, everything, arrange),)
    name = source.tensor("weight")
    if not source.inputs_first:
        return Piece(name, shape, module, "weight", (rows, everything), index, arrange, True, matrices)

    def turn(part: torch.Tensor) -> torch.Tensor:
        return part.T if arrange is None else arrange(part.T.contiguous())

    return Piece(name, shape[::-1], module, "weight", (everything, rows), index, turn, matrices=matrices)


class RowLinear(Projection):
    """A projection whose input is divided: each rank multiplies its share, the sum over ranks is the output.

    [num_tokens, in_features / size] to [num_tokens, out_features], the same on every rank; or this rank's share of the
    sum, where `leaves_share`: the norm behind it adds up.
    """

    bias: torch.Tensor | None
    leaves_share = False

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
        self.num_columns = out_features
        self.register_buffer("weight", placement.empty(out_features, self.share))
        self.register_buffer("bias", placement.empty(out_features) if bias else None)
        self.adapters: AdapterTable | None = None
        self.is_summed = placement.group.size > 1

    def forward(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`adapters`: as `ForwardInput.adapters`."""
        if not self.is_summed:
            output = self.product(x, self.bias, self.placement.batch_invariant)
            return adapt(output, x, adapters, self.adapters)
        # The bias is added after the sum, or it would be added once per rank.
        output = self.product(x, None, self.placement.batch_invariant)
        share = adapt(output, x, adapters, self.adapters)
        if self.leaves_share:
            return share
        total = self.placement.group.all_reduce(share)
        return total if self.bias is None else total.add_(self.bias)

    def leave_share(self) -> bool:
        """From now on leave the sum to who takes the result, if it is the last thing done here; whether it is left."""
        self.leaves_share = self.is_summed and self.bias is None
        return self.leaves_share

    def adapted_parts(self) -> list[list[AdaptedPart]]:
        """See `AdaptedLayer`."""
        start = self.placement.group.rank * self.share
        everything = slice(0, self.num_columns)
        inputs = slice(start, start + self.share)
        part = AdaptedPart(self.name, self.shape, everything, inputs, everything, transposed=self.transposed)
        return [[part]]

    def pieces(self, has: Has) -> Iterator[Piece]:
        start = self.placement.group.rank * self.share
        rows, inputs = slice(0, self.shape[0]), slice(start, start + self.share)
        source = Source(self.name, self.shape, inputs_first=self.transposed)
        name, matrices = source.tensor("weight"), (MatrixPart(source, rows, inputs),)
        if self.transposed:
            shape, window = self.shape[::-1], (inputs, rows)
            yield Piece(name, shape, self, "weight", window, rows, torch.t, matrices=matrices)
        else:
            yield Piece(name, self.shape, self, "weight", (rows, inputs), rows, matrices=matrices)
        if self.bias is not None:
            yield Piece(f"{self.name}.bias", self.shape[:1], self, "bias", (rows,), rows)
