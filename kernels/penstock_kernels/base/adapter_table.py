"""The change that each adapter on a device makes to one linear layer, or to the embeddings of tokens.

Which row uses which is data, and so is the table.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

from penstock_kernels.base.upload import upload

# Words of an entry, as `Adapter` of native/src/adapters.c has them, or `Entry` of native/src/adapted_embedding.c:
# addresses, then sizes, then what is not used.
NUM_WORDS = 8


class AdapterWeights(NamedTuple):
    """One adapter's part of one layer: columns `c` of the outputs get `shrunk[first[c]:][:width] @ up[:, c]`.

    `shrunk` is `down @ x`. Fused projections have their ranks one after the other in `down`, and each column says where
    its own begin. Where a projection has a smaller rank than `width`, the rest of its `up` is zero.
    """

    down: torch.Tensor  # [rank, len]
    up: torch.Tensor  # [width, num_columns]
    first: torch.Tensor  # [num_columns] int32; -1: nothing is done to the column
    factor: torch.Tensor | None = None  # [num_columns] float32: multiplies the output before
    addend: torch.Tensor | None = None  # [num_columns] float32: is added

    def to(self, device: torch.device) -> "AdapterWeights":
        """These weights on a device. The host does not wait for tensors in pinned memory."""
        return AdapterWeights(*(None if it is None else it.to(device, non_blocking=True) for it in self))  # type: ignore[arg-type]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(it.nbytes for it in self if it is not None)

    def words(self) -> list[int]:
        """See `Entry`."""
        return [*map(_address, self), self.down.shape[0], self.up.shape[0], 0]


class EmbeddingWeights(NamedTuple):
    """The change that one adapter makes to the embeddings of the tokens that a rank holds.

    `rows[row_of[token]]` takes the place of a token's row, or, where there is `up`, its product with it is added.
    """

    rows: torch.Tensor  # [num_rows, width]
    row_of: torch.Tensor  # [num_tokens] int32; -1: nothing is done to the token
    up: torch.Tensor | None = None  # [width, dim]

    def to(self, device: torch.device) -> "EmbeddingWeights":
        """See `AdapterWeights.to`."""
        return EmbeddingWeights(*(None if it is None else it.to(device, non_blocking=True) for it in self))  # type: ignore[arg-type]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return sum(it.nbytes for it in self if it is not None)

    def words(self) -> list[int]:
        """See `Entry`."""
        return [*map(_address, self), len(self.row_of), self.rows.shape[1], 0, 0, 0]


def _address(part: torch.Tensor | None) -> int:
    return 0 if part is None else part.data_ptr()


class Entry(Protocol):
    """An entry of a table, under the number of an adapter."""

    def words(self) -> list[int]:
        """Addresses and sizes, `NUM_WORDS` of them. All zero: nothing."""
        ...


Weights = TypeVar("Weights", bound=Entry)


class Table(Generic[Weights]):
    """The changes that the adapters on a device make in one place, by the number of the adapter."""

    def __init__(self, num_adapters: int, device: torch.device) -> None:
        self.entries: list[Weights | None] = [None] * num_adapters
        self.words = torch.zeros(num_adapters, NUM_WORDS, dtype=torch.int64, device=device)

    @property
    def device(self) -> torch.device:
        """The device of the table."""
        return self.words.device

    def place(self, number: int, weights: Weights | None) -> None:
        """Put an adapter's part, which is on the device, under a number; None: it does nothing here."""
        self.place_all(number, [weights])

    def place_all(self, first: int, weights: Sequence[Weights | None]) -> None:
        """Put parts under the numbers from `first` on."""
        numbers = slice(first, first + len(weights))
        self.entries[numbers] = weights
        self.words[numbers].copy_(upload(torch.tensor([_words(it) for it in weights]), self.device))


def _words(weights: Entry | None) -> list[int]:
    return [0] * NUM_WORDS if weights is None else weights.words()


class AdapterTable(Table[AdapterWeights]):
    """The adapters of one linear layer."""

    def __init__(self, num_adapters: int, device: torch.device) -> None:
        super().__init__(num_adapters, device)
        # The greatest rank of the adapters in it; 0 without any.
        self.max_rank = 0

    def place_all(self, first: int, weights: Sequence[AdapterWeights | None]) -> None:
        super().place_all(first, weights)
        self.max_rank = max((entry.down.shape[0] for entry in self.entries if entry is not None), default=0)


class EmbeddingTable(Table[EmbeddingWeights]):
    """The adapters of the embeddings of tokens."""
