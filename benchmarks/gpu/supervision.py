"""Runs a part in a process of its own: ended when its time is over, begun again when the process or the device died.

Nothing here imports torch: this process must not hold the device.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.parts import DEVICE_LOST, FINISHED, OUT_OF_TIME, PARTS
from benchmarks.gpu.report import write_page

# A task that is running when the time is over has this many seconds to end, so that its result is not lost.
_GRACE_S = 10.0
# So many processes in a row may die without a result. The second one says what the first one died of.
_MOST_FRUITLESS = 3


@dataclass(frozen=True)
class Options:
    """The options of the command line: the folder, the mode, seconds for each part, a text that names must contain."""

    out: Path
    rehearse: bool
    limit: float
    match: str


def run_part(number: int, options: Options) -> bool:
    """Whether everything of this part is measured now."""
    print(f"\n== part {number}: {PARTS[number].title}", flush=True)
    deadline, died, fruitless, size = time.monotonic() + options.limit, 0, 0, _size(options)
    while True:
        code = _child(number, options, deadline, died)
        fruitless = 0 if _size(options) > size else fruitless + 1
        if code in (FINISHED, OUT_OF_TIME) or fruitless == _MOST_FRUITLESS:
            break
        # The task that had begun gets a line with this code, and the rest goes on in a new process.
        died, size = 0 if code == DEVICE_LOST else code, _size(options)
    write_page(options.out)
    print(f"== part {number}: {'complete' if code == FINISHED else 'not complete, run it again'}", flush=True)
    return code == FINISHED


def _size(options: Options) -> int:
    """The size of the file of lines, in bytes: it grows with every result."""
    path = options.out / "lines.jsonl"
    return path.stat().st_size if path.exists() else 0


def _child(number: int, options: Options, deadline: float, died: int) -> int:
    """The exit code of one process of a part."""
    seconds = deadline - time.monotonic() - _GRACE_S
    if seconds <= 0:
        return OUT_OF_TIME
    command = [sys.executable, "-m", "benchmarks.gpu.child", str(number), str(options.out), str(seconds)]
    command += [f"--died={died}", f"--match={options.match}", *["--rehearse"] * options.rehearse]
    # Its input ends when this process does, however that ends; then it ends itself and all that it started.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        return process.wait(seconds + _GRACE_S)
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends everything that a part has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
