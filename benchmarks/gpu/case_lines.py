"""A plugin of pytest: tells `cases` of every case as it ends, through a pipe."""

import json
import os

import pytest

from benchmarks.gpu.run import is_of_device

_PIPE = int(os.environ.get("PENSTOCK_CASE_LINES", "-1"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line for each case: what it took, and its error or the reason why it was skipped."""
    if (
        _PIPE < 0
        or (report.when == "teardown" and report.passed)
        or (report.when == "setup" and report.passed)
    ):
        return
    text = "" if report.passed else _reason(report)
    # At most 4,096 bytes are written to a pipe in one piece.
    line = json.dumps([report.nodeid, report.outcome, report.duration, text[-1200:]])
    os.write(_PIPE, (line + "\n").encode())
    if report.failed and is_of_device(text):
        os._exit(1)


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash or report.longrepr)
