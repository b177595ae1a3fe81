"""Sets what `ps` shows of a process that was forked: the command line that it would have if it had been started."""

import ctypes
from collections.abc import Sequence
from pathlib import Path


class Title:
    """The memory in which the kernel finds the command line of this process, and of those that it forks.

    It is as long as the command line was, so whoever starts the process gives it some room, as a last word of spaces.
    """

    def __init__(self) -> None:
        # Fields are numbered as in proc(5): the first one behind the name is the third.
        fields = Path("/proc/self/stat").read_text().rsplit(") ", 1)[1].split()
        self._start, self._end = int(fields[48 - 3]), int(fields[49 - 3])

    def write(self, words: Sequence[str]) -> None:
        """Show these; what does not fit is cut off."""
        room = self._end - self._start
        if room <= 0:
            return  # the kernel does not say where it is
        text = "\0".join(words).encode(errors="surrogateescape")[: room - 1]
        ctypes.memset(self._start, 0, room)
        ctypes.memmove(self._start, text, len(text))
