"""The fault hook that holds streams in their middle, on which tests of what breaks there rely."""

import threading
from pathlib import Path

import pytest
from penstock_server.base.errors import StartError
from penstock_server.engine.plan import Plan, Span
from penstock_server.rpc import faults

BELOW, BEYOND = Plan(1, 1, spans=[Span(0, 99, 1)]), Plan(1, 1, spans=[Span(0, 5, 1), Span(1, 90, 11)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hold"


@pytest.fixture
def held(file: Path) -> faults.Faults:
    return faults.parse([f"hold:{file}:100"], rank=0)


def test_a_step_beyond_the_position_waits_until_the_file_is_gone(
    held: faults.Faults, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_LONGEST_HELD_STEP_S", 1e6)
    file.touch()
    held.before_step(BELOW)
    step = threading.Thread(target=held.before_step, args=(BEYOND,), daemon=True)
    step.start()
    step.join(0.1)
    assert step.is_alive()
    file.unlink()
    step.join(30)
    assert not step.is_alive()
    held.before_step(BEYOND)


def test_a_step_does_not_wait_so_long_that_it_counts_as_hung(
    held: faults.Faults, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "_LONGEST_HELD_STEP_S", 0.02)
    file.touch()
    held.before_step(BEYOND)
    assert file.exists()


def test_a_start_waits_until_the_file_is_gone(held: faults.Faults, file: Path) -> None:
    file.touch()
    start = threading.Thread(target=held.before_start, daemon=True)
    start.start()
    start.join(0.1)
    assert start.is_alive()
    file.unlink()
    start.join(30)
    assert not start.is_alive()


def test_nothing_is_held_unless_it_was_asked_for(file: Path) -> None:
    file.touch()
    faults.Faults().before_step(BEYOND)
    faults.Faults().before_start()


@pytest.mark.parametrize("spec", ["hold:/file", "hold", "unknown:1"])
def test_a_hook_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(StartError, match="there is no such fault hook"):
        faults.parse([spec], rank=0)
