"""Wakes the main thread of a shard: on a signal, or when a thread asks for the end."""

import os
import signal


class StopPipe:
    """Wakes the main thread from signal handlers and threads alike; a lock would deadlock in a handler."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)

    def stop(self) -> None:
        os.write(self._writer, b"x")

    def wait(self) -> None:
        os.read(self._reader, 1)

    def install_signals(self, has_parent: bool) -> None:
        """Stop at SIGTERM, and at Ctrl-C where no launcher is the parent."""
        # Python runs a handler in the main thread only, between two of its instructions. A signal that another thread
        # gets, or that comes just before `read`, would not wake it. The byte is written at once, whoever gets it.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _woken)
        # Ctrl-C reaches every process of the terminal. The launcher first drains the router and then sends SIGTERM.
        signal.signal(signal.SIGINT, signal.SIG_IGN if has_parent else _woken)


def _woken(_number: int, _frame: object) -> None:
    """A signal without a handler writes no byte."""
