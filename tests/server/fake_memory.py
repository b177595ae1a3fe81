"""The memory of a GPU that is not there: what live tensors take, and what graphs keep.

Graphs share a pool, which keeps the most that one of them had at a time. Rounding is left out, and what libraries take.
"""

from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

TOTAL_BYTES = 80 * 1024**3


@dataclass(frozen=True, slots=True)
class _Piece:
    storage: StorageWeakRef
    num_bytes: int
    is_in_pool: bool


class FakeMemory:
    """Counts only when that is asked for: it costs time with every op."""

    def __init__(self) -> None:
        self.is_counting = False
        self.peak = 0
        self.total = TOTAL_BYTES
        self._pieces: dict[int, _Piece] = {}
        self._pool_bytes = 0

    @property
    def allocated(self) -> int:
        """Bytes of live tensors, and of the pool of graphs."""
        self._pieces = {
            key: piece
            for key, piece in self._pieces.items()
            if not piece.storage.expired()  # type: ignore[no-untyped-call]
        }
        in_pool = sum(piece.num_bytes for piece in self._pieces.values() if piece.is_in_pool)
        self._pool_bytes = max(self._pool_bytes, in_pool)
        return self._pool_bytes + sum(
            piece.num_bytes for piece in self._pieces.values() if not piece.is_in_pool
        )

    def count(self, made: list[torch.Tensor], is_in_pool: bool) -> None:
        """Tensors that an op returned; views are of memory that counts already."""
        if not self.is_counting:
            return
        for tensor in made:
            if tensor.device.type == "cuda":
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                self._pieces.setdefault(reference.cdata, _Piece(reference, storage.nbytes(), is_in_pool))
        self.peak = max(self.peak, self.allocated)

    def reset_peak(self) -> None:
        self.peak = self.allocated
