"""A stretch of a test in which the host must not wait for the GPU: an op that makes it wait is an error there."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def waits_refused(case: str) -> Iterator[None]:
    """Whatever fails inside says which `case` it was; the mode that was set before is set again, however it ends."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        _set_mode("error")
        yield
    except Exception as error:
        error.add_note(f"while the host was not to wait for the GPU: {case}")
        raise
    finally:
        _set_mode(before)


def _set_mode(mode: int | str) -> None:
    """torch warns that it does not notice every wait; where warnings are errors that would end the test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode", category=UserWarning)
        torch.cuda.set_sync_debug_mode(mode)
