"""Sockets that are for this user alone from the moment they exist."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def private_umask() -> Iterator[None]:
    """Files created meanwhile are for this user alone."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)
