"""The actions of a machine on its processes: it sets the time, and kills those that take too much memory."""

import mmap
import resource
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from e2e import faults

_CLOCK_C = Path(__file__).with_name("wall_clock.c")
_CGROUPS = Path("/sys/fs/cgroup")


class WallClock:
    """The time of day of all processes of a server, which can be set while they run."""

    def __init__(self, folder: Path) -> None:
        self._shift = folder / "shift"
        self._library = folder / "wall_clock.so"
        self._shift.write_bytes(bytes(mmap.PAGESIZE))
        command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(self._library), str(_CLOCK_C)]
        subprocess.run(command, check=True)

    @staticmethod
    def can_be_made() -> bool:
        return shutil.which("cc") is not None

    @property
    def under(self) -> tuple[str, ...]:
        """A command that runs another with this clock."""
        return ("env", f"LD_PRELOAD={self._library}", f"WALL_CLOCK={self._shift}")

    def set(self, seconds: int) -> None:
        """So far from the true time, at once and for all."""
        with self._shift.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as shared:
            shared[:8] = struct.pack("=q", seconds)

    def is_of(self, pid: int) -> bool:
        return str(self._library) in Path(f"/proc/{pid}/maps").read_text()


@contextmanager
def without_memory(pid: int) -> Iterator[str]:
    """Not a page more for this process, which ends it before long; says what does.

    The kernel kills where a memory cgroup can be made. Elsewhere the process is refused pages, and killed from here.
    """
    with _memory_group() as group:
        if group is not None:
            (group / "cgroup.procs").write_text(str(pid))
            yield "killed by the kernel, in a cgroup without memory"
            return
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
    time.sleep(1)
    # It may have ended of itself.
    with suppress(ProcessLookupError):
        faults.kill(pid)
    yield "refused memory, and killed"


@contextmanager
def _memory_group() -> Iterator[Path | None]:
    """A cgroup that may hold nothing, of either version; pages that a process had before it came are not counted."""
    old, new = _CGROUPS / "memory", _CGROUPS
    root, limit = (old, "memory.limit_in_bytes") if old.is_dir() else (new, "memory.max")
    group = root / "penstock-test"
    try:
        group.mkdir(exist_ok=True)
        (group / limit).write_text("0")
    except OSError:
        with suppress(OSError):
            group.rmdir()
        yield None
        return
    try:
        yield group
    finally:
        # Whoever is left in it is on its way out.
        with suppress(OSError):
            group.rmdir()
