"""Refusing waits leaves nothing behind, and names the case that waited. A GPU is not needed: its mode is a number."""

import warnings

import pytest
import torch
from refused_waits import waits_refused

_NUMBERS = {"default": 0, "warn": 1, "error": 2}


class Mode:
    """torch's mode, which warns when it is set, as that of torch does, after it was set."""

    def __init__(self) -> None:
        self.now = _NUMBERS["warn"]

    def get(self) -> int:
        return self.now

    def set(self, mode: int | str) -> None:
        self.now = mode if isinstance(mode, int) else _NUMBERS[mode]
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> Mode:
    mode = Mode()
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", mode.get)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode.set)
    return mode


def test_waits_are_errors_inside_only(mode: Mode) -> None:
    with waits_refused("a decode"):
        assert mode.now == _NUMBERS["error"]
    assert mode.now == _NUMBERS["warn"]


def test_a_failure_names_its_case_and_leaves_nothing_behind(mode: Mode) -> None:
    with (
        pytest.raises(RuntimeError, match="called a synchronizing CUDA operation") as failure,
        waits_refused("rows"),
    ):
        raise RuntimeError("called a synchronizing CUDA operation")
    assert failure.value.__notes__ == ["while the host was not to wait for the GPU: rows"]
    assert mode.now == _NUMBERS["warn"]


def test_other_warnings_stay_errors(mode: Mode) -> None:
    with pytest.raises(DeprecationWarning), waits_refused("rows"):
        warnings.warn("old", DeprecationWarning, stacklevel=1)
