"""Vectors that adapters have in the place of a layer's (`modules_to_save`, or biases): norms of every kind.

A layer computes all rows with its own vectors, and then, by the same op, the rows of each adapter with that one's.
"""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from penstock_kernels import AdapterRows

from penstock_server.network.weights import Has, Piece

# By attribute of the layer.
Vectors = dict[str, torch.Tensor]


class OwnWeights:
    """The vectors of adapters in one layer, by their number on the device."""

    def __init__(self) -> None:
        self._of_number: dict[int, Vectors] = {}

    def __bool__(self) -> bool:
        """Whether any adapter has some here."""
        return bool(self._of_number)

    def place(self, number: int, vectors: Vectors | None) -> None:
        """Give an adapter its vectors, which are on the device; None: it uses the layer's."""
        self._of_number.pop(number, None)
        if vectors is not None:
            self._of_number[number] = vectors

    def groups(self, adapters: AdapterRows) -> Iterator[tuple[torch.Tensor, Vectors]]:
        """The rows of each adapter that has some, and these; the same on every rank."""
        for number, vectors in self._of_number.items():
            rows = adapters.of(number)
            if len(rows):
                yield rows, vectors


class TakesOwn(Protocol):
    """A layer whose vectors an adapter may replace."""

    # None until the model is to have adapters.
    own: OwnWeights | None

    def pieces(self, has: Has) -> Iterator[Piece]:
        """See `Loadable`."""
        ...


def takes_own(module: Any) -> bool:
    """Whether it is a `TakesOwn`."""
    return hasattr(module, "own") and getattr(module, "is_replaceable", True)


def groups_of(own: OwnWeights | None, adapters: AdapterRows | None) -> Iterator[tuple[torch.Tensor, Vectors]]:
    """The groups of `OwnWeights.groups`; none in a step where no row has an adapter."""
    return iter(()) if not own or adapters is None else own.groups(adapters)
