"""Log lines on stderr: as text, or as one JSON object a line, which the launcher passes on."""

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from penstock_server.base.config import LogLevel

_LEVELS: dict[LogLevel, int] = {
    "off": logging.CRITICAL + 1,
    "error": logging.ERROR,
    "warn": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        line = {
            "timestamp": _timestamp(record),
            "level": record.levelname,
            "target": record.name,
            "message": message,
        }
        return json.dumps(line)


class _TextFormatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _timestamp(record)


def _timestamp(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def configure(json_output: bool, level: LogLevel = "info") -> None:
    """Send the log of this process to stderr. Called once, before anything else is imported."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if json_output
        else _TextFormatter("%(asctime)s %(levelname)5s %(name)s: %(message)s")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


@contextmanager
def stage(logger: logging.Logger, name: str) -> Iterator[None]:
    """Log how long a stage of the start took."""
    begun = time.perf_counter()
    yield
    logger.info("%s took %.2f s", name, time.perf_counter() - begun)
