"""Memory of all ranks of a group that a kernel of each reaches, and how a sum over the ranks goes through it.

The memory of every rank has the same layout: flags, and two places for each row of a sum, which rounds take in turn.

    flags [max_rows, size] int64 | [2, max_rows, row_bytes]

In a round a rank writes its share of a row to its own place, tells every rank by a flag there, waits for the flags of
all, and reads the shares of all. A place is written again two rounds later: by then each rank has begun the round
between, so it has read all of this one. The rounds of a row are counted on the device, so that a captured graph holds
for any.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_FLAG_BYTES = 8
# Rows begin where loads of 16 bytes may.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Peers:
    """One rank's view. All ranks make the same calls in the same order, with as many rows each."""

    rank: int
    max_rows: int
    row_bytes: int
    # The page of each rank; uint8, at first all zeros.
    pages: tuple[torch.Tensor, ...]
    # [size] int64: where they are; on the device, as the next.
    addresses: torch.Tensor
    # [max_rows] int64: how many rounds each row had.
    rounds: torch.Tensor

    @classmethod
    def of(cls, rank: int, pages: Sequence[torch.Tensor], max_rows: int, row_bytes: int) -> "Peers":
        """`pages`: of `page_bytes` each."""
        device = pages[rank].device
        addresses = torch.tensor([page.data_ptr() for page in pages], dtype=torch.int64, device=device)
        rounds = torch.zeros(max_rows, dtype=torch.int64, device=device)
        return cls(rank, max_rows, _aligned(row_bytes), tuple(pages), addresses, rounds)

    @staticmethod
    def page_bytes(size: int, max_rows: int, row_bytes: int) -> int:
        """The bytes that each rank of a group of `size` needs."""
        return _first_row(size, max_rows) + 2 * max_rows * _aligned(row_bytes)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.pages)

    @property
    def first_row(self) -> int:
        """The byte of a page at which the places for rows begin."""
        return _first_row(self.size, self.max_rows)

    def fits(self, x: torch.Tensor) -> bool:
        """Whether these rows have places; x: [num_rows, dim]."""
        if x.dim() != 2 or x.stride(1) != 1 or not x.is_floating_point():
            return False
        return 0 < x.shape[0] <= self.max_rows and 0 < x.shape[1] * x.element_size() <= self.row_bytes

    def flags(self, rank: int) -> torch.Tensor:
        """[max_rows, size] int64: the last round in which each rank told this one of a row."""
        num_bytes = self.max_rows * self.size * _FLAG_BYTES
        return self.pages[rank][:num_bytes].view(torch.int64).view(self.max_rows, self.size)

    def places(self, rank: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """[2, max_rows, dim] of this type: where a rank puts its rows."""
        rows = self.pages[rank][self.first_row :].view(2, self.max_rows, self.row_bytes)
        return rows[..., : dim * dtype.itemsize].view(dtype)


def _first_row(size: int, max_rows: int) -> int:
    return _aligned(max_rows * size * _FLAG_BYTES)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
