"""Files as a machine has them that did not write them.

The page cache keeps a file in the pieces in which it was written. A server that maps a file of weights reads these by
pages of the same sizes, and small pages cost: so every server shall read the files itself, as after a start of the
machine.
"""

import os
from pathlib import Path


def forget(file: Path) -> None:
    """Drops what the page cache has of a file."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
