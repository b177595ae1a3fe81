"""Ties the life of this process to its launcher: no orphan may hold a device."""

import ctypes
import os
import signal
import threading

_PR_SET_PDEATHSIG = 1


def watch(pipe_fd: int, is_parent: bool = True) -> None:
    """Exit at once when the launcher's end of the inherited pipe closes.

    The kernel's parent-death signal comes on top, for a process that cannot run a thread any more. Alone it is not
    enough: it is tied to the thread that forked, and it misses a parent that ended before it was set. Where the
    launcher `is_parent` no more, the fork server kills such a process.
    """
    if is_parent:
        at_end_of_parent(signal.SIGKILL)
    threading.Thread(target=_exit_on_eof, args=(pipe_fd,), name="parent-watch", daemon=True).start()


def at_end_of_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _exit_on_eof(pipe_fd: int) -> None:
    while os.read(pipe_fd, 1024):
        pass
    os._exit(1)
