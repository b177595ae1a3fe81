"""A browser drops what it is loading when an address of its machine comes or goes (net::ERR_NETWORK_CHANGED). So tests
that change addresses wait for tests with a browser to end, and these for the change.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FILE = Path(tempfile.gettempdir()) / f"penstock-tests-addresses-{os.geteuid()}.lock"


@contextmanager
def addresses_stay() -> Iterator[None]:
    """No test changes them meanwhile."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextmanager
def addresses_change() -> Iterator[None]:
    """Nobody relies on them meanwhile."""
    with _locked(fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(kind: int) -> Iterator[None]:
    with _FILE.open("a") as file:
        fcntl.flock(file, kind)
        yield
