"""The process of one part: `python -m benchmarks.gpu.child PART OUT SECONDS`, started by `supervision`."""

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from benchmarks.gpu.lines import Result
from benchmarks.gpu.parts import DEVICE_LOST, FINISHED, OUT_OF_TIME, PARTS
from benchmarks.gpu.run import DeviceLost, OutOfTime, Run


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", type=int)
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--died", type=int, default=0, help="exit code of the process before this one")
    parser.add_argument("--match", default="")
    chosen = parser.parse_args()
    if chosen.rehearse:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run = Run(chosen.part, chosen.out, chosen.rehearse, chosen.seconds, chosen.match)
    note_death(run, chosen.died)
    try:
        measure(run)
    except OutOfTime:
        return OUT_OF_TIME
    except DeviceLost:
        return DEVICE_LOST
    return FINISHED


def note_death(run: Run, code: int) -> None:
    """A line for what the process before this one was doing when it died, if it did."""
    if code and run.postponed is not None:
        _, name, by = run.postponed
        run.add(name, [Result("", None, error=f"its process ended with {code}")], by)


def measure(run: Run) -> None:
    """All tasks; what was begun in an earlier run and never ended comes last."""
    PARTS[run.part].measure(run)
    if run.postponed is not None:
        run.postponed = None
        PARTS[run.part].measure(run)


def _end_with_parent() -> None:
    """Ends this process and its group, all that it started, when its input ends."""
    # Not through sys.stdin, whose lock would be held when this process ends.
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
