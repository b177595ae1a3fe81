"""The common parts of the kinds of recurrent layers: a short convolution, and numbers of each head."""

from collections.abc import Iterator
from itertools import pairwise

import torch
from penstock_kernels import RecurrentSpans, causal_conv
from torch import nn

from penstock_server.network.layers.linear import Rows
from penstock_server.network.layers.own_weights import OwnWeights
from penstock_server.network.layers.placement import Placement
from penstock_server.network.weights import Has, Piece


class ShortConv(nn.Module):
    """A convolution of every channel by itself, over this rank's channels: some rows of one tensor or of several."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, rows: list[Rows], width: int, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.rows = rows
        self.width = width
        self.num_channels = sum(part.stop - part.start for part in rows)
        self.register_buffer("weight", placement.empty(self.num_channels, width))
        self.register_buffer("bias", placement.empty(self.num_channels) if bias else None)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor, spans: RecurrentSpans, silu: bool = False
    ) -> torch.Tensor:
        return causal_conv(x, self.weight, self.bias, state, spans, silu)

    def pieces(self, has: Has) -> Iterator[Piece]:
        end = 0
        for part in self.rows:
            begin, end = end, end + part.stop - part.start
            rows, target = slice(part.start, part.stop), slice(begin, end)
            shape, window = (part.total, 1, self.width), (rows, slice(0, 1), slice(0, self.width))
            yield Piece(f"{part.name}.weight", shape, self, "weight", window, target, _flat)
            if self.bias is not None:
                yield Piece(f"{part.name}.bias", shape[:1], self, "bias", (rows,), target)


class Vector(nn.Module):
    """Some of the `total` numbers of a tensor, in float32. Its name has nothing behind it but what is given.

    `around`: how many dimensions of size 1 the tensor has before that of the numbers, and behind it.
    """

    weight: torch.Tensor

    def __init__(
        self,
        name: str,
        total: int,
        first: int,
        count: int,
        around: tuple[int, int] = (0, 0),
        is_replaceable: bool = False,
    ) -> None:
        """`is_replaceable`: by vectors of adapters, which the layer applies."""
        super().__init__()
        self.is_replaceable = is_replaceable
        self.own: OwnWeights | None = None
        self.name = name
        self.total = total
        self.around = around
        self.window = slice(first, first + count)
        self.register_buffer("weight", torch.empty(count, dtype=torch.float32))

    def pieces(self, has: Has) -> Iterator[Piece]:
        count = self.window.stop - self.window.start
        before, behind = self.around
        shape = (*(1,) * before, self.total, *(1,) * behind)
        window = (*(slice(0, 1),) * before, self.window, *(slice(0, 1),) * behind)
        arrange = torch.flatten if before or behind else None
        yield Piece(self.name, shape, self, "weight", window, slice(0, count), arrange)


class Rates(nn.Module):
    """The exponential of some rows of a [total, size] tensor, in float32. Its name has nothing behind it."""

    weight: torch.Tensor

    def __init__(self, name: str, total: int, size: int, first: int, count: int) -> None:
        super().__init__()
        self.name = name
        self.shape = (total, size)
        self.window = slice(first, first + count)
        self.register_buffer("weight", torch.empty(count, size, dtype=torch.float32))

    def pieces(self, has: Has) -> Iterator[Piece]:
        window = (self.window, slice(0, self.shape[1]))
        count = self.window.stop - self.window.start
        yield Piece(self.name, self.shape, self, "weight", window, slice(0, count), _exp)


def joined(rows: list[Rows]) -> list[Rows]:
    """Parts of one tensor that follow each other become one: on a single rank it is then read as it is."""
    found = rows[:1]
    for before, part in pairwise(rows):
        follows = before.name == part.name and before.stop == part.start
        if follows and before.arrange is None and part.arrange is None:
            found[-1] = Rows(part.name, part.total, found[-1].start, part.stop)
        else:
            found.append(part)
    return found


def _flat(part: torch.Tensor) -> torch.Tensor:
    return part.squeeze(1)


def _exp(part: torch.Tensor) -> torch.Tensor:
    return part.float().exp()
