"""Messages from one process of a machine to another, in C over memory that they share: who sends does not wait for who
takes, as long as there is room. The memory is as that of an `Exchange`.
"""

import ctypes
import mmap
import os
from pathlib import Path

import torch

from penstock_kernels.native.exchange import (
    LINE_BYTES,
    PART_BYTES,
    ExchangeFailed,
    Link,
    failure_of,
    make_memory,
    open_memory,
)
from penstock_kernels.native.library import library, run

# Parts in the ring of a channel; mirrors src/exchange.c.
NUM_PARTS = 256


class _Message(ctypes.Structure):
    """`Message` of src/exchange.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("link", "bytes")),
        ("num_bytes", ctypes.c_int64),
    )


class Channel:
    """An end of it; each is used by one thread at a time."""

    def __init__(self, folder: Path, source: int, target: int, rank: int, timeout_s: float) -> None:
        """Meet the other end in a fresh private folder. `rank`: which of both this is."""
        compiled = library()
        assert compiled is not None, "see `is_supported`"
        self._library = compiled
        self._other = target if rank == source else source
        place, num_bytes = int(rank != source), 2 * LINE_BYTES + NUM_PARTS * (LINE_BYTES + PART_BYTES)
        self._file = make_memory(folder, num_bytes) if rank == source else open_memory(folder, timeout_s)
        self._memory = mmap.mmap(self._file, num_bytes)
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._link = Link(memory, PART_BYTES, int(timeout_s * 1000), place, 2, self._file, 0, 0, 0)
        if error := self._library.penstock_join(ctypes.byref(self._link)):
            raise ExchangeFailed(f"rank {rank} is there already: {os.strerror(error)}")

    def put(self, x: torch.Tensor) -> None:
        """Send this behind what was sent before; waits only where there is no room."""
        x = x.contiguous()
        call = _Message(ctypes.addressof(self._link), x.data_ptr(), x.numel() * x.element_size())
        run("penstock_put", call, self, x, failure=self._failure)

    def take(self, room: torch.Tensor) -> None:
        """Fill this with what came next, which has its size; waits for it."""
        num_bytes = room.numel() * room.element_size()
        if self._next_size() != num_bytes:
            raise ExchangeFailed(f"rank {self._other} sent another size")
        self._take(room)

    def take_numbers(self) -> list[int]:
        """The next message, of any size, as int64 numbers; waits for it."""
        room = torch.empty(self._next_size() // 8, dtype=torch.int64)
        self._take(room)
        return room.tolist()

    def has_come(self) -> bool:
        """Whether there is something to take, so that nothing waits."""
        call = _Message(ctypes.addressof(self._link), None, 0)
        return bool(self._library.penstock_has_come(ctypes.byref(call)))

    def wait(self) -> None:
        """Wait until there is something to take."""
        self._next_size()

    def leave(self) -> None:
        """Tell the other end. The memory stays until nothing points to it."""
        if self._file >= 0:
            self._library.penstock_leave(ctypes.byref(self._link))
            os.close(self._file)
            self._file = -1

    def _next_size(self) -> int:
        call = _Message(ctypes.addressof(self._link), None, 0)
        run("penstock_await", call, self, failure=self._failure)
        return int(call.num_bytes)

    def _take(self, room: torch.Tensor) -> None:
        call = _Message(ctypes.addressof(self._link), room.data_ptr(), room.numel() * room.element_size())
        run("penstock_take", call, self, room, failure=self._failure)

    def _failure(self) -> ExchangeFailed:
        return failure_of(self._link, self._other)
