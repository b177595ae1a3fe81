"""Sums and exchanges between processes of one machine, in C over memory that they share.

The memory has no name in any file system: rank 0 makes it, and the others open it by a link to the file of rank 0's
process. So nothing is left behind by whatever ends the ranks, and the size of /dev/shm does not matter.
"""

import ctypes
import mmap
import os
import sys
import time
from pathlib import Path

import torch

from penstock_kernels.native.library import DTYPES, library, run

_LINK_FILE = "exchange"
# Bytes of a sum that are added at a time: few enough to stay in the processor's caches.
PART_BYTES = 1 << 18
LINE_BYTES = 64
_POLL_S = 0.005


class ExchangeFailed(Exception):
    """Another rank did not take part."""


class Link(ctypes.Structure):
    """`Link` of src/exchange.c, field by field."""

    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("part_bytes", ctypes.c_int64),
        ("timeout_ms", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("rank", "size", "file")),
        ("round", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("failure", "failed_rank")),
    )


class _Sum(ctypes.Structure):
    """`Sum` of src/exchange.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("link", "numbers")),
        *((name, ctypes.c_int64) for name in ("count", "dtype")),
    )


class _Gather(ctypes.Structure):
    """`Gather` of src/exchange.c, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("link", "mine", "everyones")),
        ("num_bytes", ctypes.c_int64),
    )


def is_supported() -> bool:
    """Whether this machine has what an exchange needs."""
    return sys.platform == "linux" and library() is not None


class Exchange:
    """A rank's end. All ranks make the same calls in the same order, each from one thread at a time."""

    def __init__(self, folder: Path, rank: int, size: int, timeout_s: float) -> None:
        """Meet the others in a fresh private folder; a rank that does not come in time ends it."""
        compiled = library()
        assert compiled is not None, "see `is_supported`"
        self._library = compiled
        num_bytes = size * (LINE_BYTES + 2 * PART_BYTES)
        self._file = make_memory(folder, num_bytes) if rank == 0 else open_memory(folder, timeout_s)
        self._memory = mmap.mmap(self._file, num_bytes)
        memory = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._link = Link(memory, PART_BYTES, 0, rank, size, self._file, 0, 0, 0)
        self.set_timeout(timeout_s)
        if error := self._library.penstock_join(ctypes.byref(self._link)):
            raise ExchangeFailed(f"rank {rank} is there already: {os.strerror(error)}")

    def set_timeout(self, timeout_s: float) -> None:
        """Set how long to wait for a rank that lives, from now on."""
        self._link.timeout_ms = int(timeout_s * 1000)

    def all_reduce(self, x: torch.Tensor) -> None:
        """The sum over all ranks, in place: added in the order of ranks, in float32."""
        if x.dtype not in DTYPES or not x.is_contiguous():
            x.copy_(self._gathered(x).sum(0))
            return
        call = _Sum(ctypes.addressof(self._link), x.data_ptr(), x.numel(), DTYPES[x.dtype])
        run("penstock_sum", call, self, x, failure=self._failure)

    def all_gather(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors of all ranks, in the order of the ranks."""
        return self._gathered(x).unbind(0)

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """The tensor of the rank `source`; the others bring a tensor of the same shape."""
        return self._gathered(x)[source]

    def leave(self) -> None:
        """Tell the others. The memory stays until nothing points to it."""
        if self._file >= 0:
            self._library.penstock_leave(ctypes.byref(self._link))
            os.close(self._file)
            self._file = -1

    def _gathered(self, x: torch.Tensor) -> torch.Tensor:
        """[size, *shape]."""
        mine = x.contiguous()
        everyones = torch.empty(self._link.size, *x.shape, dtype=x.dtype)
        num_bytes = mine.numel() * mine.element_size()
        call = _Gather(ctypes.addressof(self._link), mine.data_ptr(), everyones.data_ptr(), num_bytes)
        run("penstock_gather", call, self, mine, everyones, failure=self._failure)
        return everyones

    def _failure(self) -> ExchangeFailed:
        return failure_of(self._link, self._link.failed_rank)


def failure_of(link: Link, rank: int) -> ExchangeFailed:
    """Why a call failed in which this rank was waited for."""
    reasons = (
        "no reason",
        f"rank {rank} has ended",
        f"rank {rank} did not come within {link.timeout_ms / 1000:g} s",
        f"rank {rank} brought another size",
    )
    return ExchangeFailed(reasons[link.failure])


def make_memory(folder: Path, num_bytes: int) -> int:
    """Memory that the others find in this folder; it has no pages before it is written to."""
    file = os.memfd_create("penstock-exchange", os.MFD_CLOEXEC)
    os.truncate(file, num_bytes)
    (folder / _LINK_FILE).symlink_to(f"/proc/{os.getpid()}/fd/{file}")
    return file


def open_memory(folder: Path, timeout_s: float) -> int:
    """The file of the shared memory that another rank makes in `folder`; waits for it up to `timeout_s`."""
    give_up = time.monotonic() + timeout_s
    while True:
        try:
            return os.open(folder / _LINK_FILE, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if time.monotonic() > give_up:
                raise ExchangeFailed(f"rank 0 did not come within {timeout_s:g} s") from None
            time.sleep(_POLL_S)
