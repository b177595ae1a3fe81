"""Memory of processes over time, and how fast it grows."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

_MIB = 1024


def resident_mib(pid: int, kind: str = "RssAnon") -> float:
    """Memory of one process; 0 if it has ended. Pages of files do not count unless `kind` is VmRSS."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / _MIB for line in lines if line.startswith(f"{kind}:")), 0.0)


def num_files(pid: int) -> int:
    """Open file descriptors."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@dataclass
class Course:
    """One process' memory over time."""

    name: str
    pid: int
    at: list[float] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)

    def look(self) -> None:
        self.at.append(time.monotonic())
        self.mib.append(resident_mib(self.pid))

    def slope(self) -> float:
        """MiB per 10 minutes: the median of the slopes of all pairs of samples, which a single jump does not change."""
        looks = list(zip(self.at, self.mib, strict=True))
        pairs = ((one, other) for index, one in enumerate(looks) for other in looks[index + 1 :])
        return 600 * median((other[1] - one[1]) / (other[0] - one[0]) for one, other in pairs)
