"""An entry of the cache of quantized weights: a folder by what decides the bytes, with a file for each rank.

A file is written under another name and renamed, so that nobody sees half of it. One process at a time writes it.
"""

import fcntl
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock_server import __version__
from penstock_server.base.config import QuantizeCache
from penstock_server.files.checkpoint import Checkpoint

IDENTITY = "identity.json"
# The suffix of a file that is being written.
UNFINISHED = ".unfinished"
_DIGITS = 32


class Entry(NamedTuple):
    """The file of one rank, whether it is there or not."""

    folder: Path
    file: Path
    # All that decides the bytes, but the rank; the folder's name is its digest.
    identity: dict[str, Any]
    # GB that all entries together take at most.
    max_gb: int
    # The size of the group.
    world_size: int

    @property
    def digest(self) -> str:
        """The digest of the identity."""
        return self.folder.name

    def touch(self) -> None:
        """Note that it was used; a folder that cannot be written stays as it is."""
        with suppress(OSError):
            os.utime(self.folder)


def entry_of(
    cache: QuantizeCache, checkpoint: Checkpoint, rounding: dict[str, Any], rank: int, world_size: int
) -> Entry:
    """The entry for a checkpoint as its files are now. `rounding`: what else decides the codes."""
    identity = {
        "version": __version__,
        "rounding": rounding,
        "world_size": world_size,
        "config": _digest((checkpoint.folder / "config.json").read_bytes()),
        "files": [described(file) for file in sorted({entry.file for entry in checkpoint.entries.values()})],
    }
    folder = place(cache) / _digest(json.dumps(identity, sort_keys=True).encode())
    return Entry(folder, folder / f"rank-{rank}.safetensors", identity, cache.max_gb, world_size)


def place(cache: QuantizeCache) -> Path:
    """The folder of all entries."""
    if cache.folder is not None:
        return cache.folder
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "penstock" / "quantized"


def described(file: Path) -> list[str | int]:
    """A file of a checkpoint, so that it is noticed when it becomes another one: its header is read, no number."""
    with file.open("rb") as stream:
        prefix = stream.read(8)
        header = stream.read(int.from_bytes(prefix, "little"))
    return [*stamps(file), _digest(prefix + header)]


def stamps(file: Path) -> list[str | int]:
    """The properties of a file that change when somebody writes to it, or puts another in its place."""
    real = file.resolve()
    found = real.stat()
    return [str(real), found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


class Unfinished:
    """The file of a rank while it is written, under another name until it is whole."""

    def __init__(self, entry: Entry, stream: BinaryIO) -> None:
        self.stream = stream
        self._path, self._file = _unfinished(entry), entry.file

    def finish(self) -> None:
        """Give it its name; raises OSError."""
        self.stream.flush()
        os.replace(self._path, self._file)
        self.stream.close()

    def discard(self) -> None:
        """Leave nothing of it, unless it is finished."""
        if self.stream.closed:
            return
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
            self.stream.close()


def begin_writing(entry: Entry, num_bytes: int) -> Unfinished | None:
    """Room for so many bytes; None if another process writes the file now. Raises OSError where there is no room."""
    path = _unfinished(entry)
    entry.folder.mkdir(parents=True, exist_ok=True)
    # Not emptied before it is locked.
    stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
    if not is_locked_by_us(stream, path):
        stream.close()
        return None
    unfinished = Unfinished(entry, stream)
    try:
        # Drop what a process that ended has left.
        stream.truncate(0)
        os.posix_fallocate(stream.fileno(), 0, num_bytes)
        (entry.folder / IDENTITY).write_text(json.dumps(entry.identity, indent=1))
    except OSError:
        unfinished.discard()
        raise
    return unfinished


def _unfinished(entry: Entry) -> Path:
    return entry.file.with_name(entry.file.name + UNFINISHED)


def is_locked_by_us(stream: BinaryIO, path: Path) -> bool:
    """Take the lock of an unfinished file, which ends with the process. It may have become the finished one since."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
