"""Rows of the battery that have an end, in short form: each reaches its floor, or nearly so on a busy machine."""

import sys

import pytest
from e2e.oracle import SLACK

from benchmarks import report
from benchmarks.reliability.battery import FAST


@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", FAST)
def test_the_server_stands_what_is_done_to_it(row: str) -> None:
    figures = FAST[row]()
    sys.stdout.write(f"{report.table(figures)}\n")
    missed = [f"{it.name}: {it.written}, {it.floor}" for it in figures if not it.is_met(SLACK)]
    assert not missed
