"""Logs the progress of a long stage of the start: a line every two seconds, none for a short stage."""

import logging
import time

_EVERY_S = 2.0


class Progress:
    """Bytes done of a total."""

    def __init__(self, logger: logging.Logger, what: str, total: int) -> None:
        self._logger = logger
        self._what = what
        self._total = total
        self._done = 0
        self._due = time.monotonic() + _EVERY_S

    def add(self, size: int) -> None:
        """Count `size` more bytes as done; logs if the last line is old enough."""
        self._done += size
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + _EVERY_S
        share = 100 * self._done // max(self._total, 1)
        self._logger.info("%s %d%% (%.1f of %.1f GB)", self._what, share, self._done / 1e9, self._total / 1e9)
