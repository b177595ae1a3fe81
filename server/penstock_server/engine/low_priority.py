"""Calls of llguidance that take long: on a thread of a low priority, which never holds the interpreter's lock.

llguidance takes in a token with the lock held, and a hostile grammar makes that long: nothing else of the shard would
run. It gives the lock up where it works on several matchers at once, on threads of its own, so each call here has a
second matcher that costs nothing.

Such a thread gets only the time of a processor that nobody else wants (`SCHED_IDLE`). A process that is killed ends
when the last of its threads has run to its end, so the launcher must be able to give such a thread its share back.
Where it has no right to do so, the thread has a tenth of a usual share, as what may hold the interpreter's lock has
always.
"""

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

# A tenth of the share of a usual thread.
_LOW_NICENESS = 10
_TASKS = Path("/proc/self/task")


def give_way(thread_id: int) -> None:
    """Give a thread, from now on, a tenth of what it would get where processors are wanted by others."""
    if sys.platform == "linux":  # elsewhere priorities belong to processes
        usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, thread_id, usual + _LOW_NICENESS)


class LowPriority:
    """One such thread. Used by one thread."""

    def __init__(self) -> None:
        from llguidance import LLExecutor

        name = f"grammar{threading.get_native_id()}"
        _rename(name)
        self._executor: Any = LLExecutor(num_threads=1)
        _rename("grammar")
        [thread_id] = _threads_named(name)  # a ValueError if it has another name
        _set_lowest(thread_id)
        # The kernel's number for the processor time of a thread.
        self._clock = ~thread_id << 3 | 6

    def processor_s(self) -> float:
        """Processor time of the thread since its start."""
        return time.clock_gettime(self._clock)

    def consume(self, matcher: Any, second: Any, token_id: int) -> None:
        """Take in a token. `second`: any other matcher that has failed."""
        self._executor.consume_token_par([(matcher, token_id), (second, token_id)])

    def fill(self, matcher: Any, second: Any, masks: torch.Tensor) -> None:
        """Compute the matcher's mask. masks: [2, ceil(vocab_size / 32)] int32, the first the matcher's."""
        num_bytes = masks.shape[1] * masks.element_size()
        self._executor.unsafe_compute_mask_ptr([(matcher, 0), (second, 1)], masks.data_ptr(), num_bytes, 2)


def _set_lowest(thread_id: int) -> None:
    usual = os.getpriority(os.PRIO_PROCESS, thread_id)
    give_way(thread_id)
    try:
        os.setpriority(os.PRIO_PROCESS, thread_id, usual)  # who may do this may end `SCHED_IDLE`, too
        os.sched_setscheduler(thread_id, os.SCHED_IDLE, os.sched_param(0))
    except PermissionError:
        give_way(thread_id)


def start() -> LowPriority | None:
    """Such a thread for the caller. Where none can be had the caller holds the lock itself, and keeps its priority."""
    try:
        return LowPriority()
    except (OSError, ValueError) as error:  # not Linux, or a sandbox
        logger.info("long grammars are computed with the interpreter's lock: %s", error)
        return None


def _rename(name: str) -> None:
    """Give this thread the name that threads which it starts inherit."""
    (_TASKS / str(threading.get_native_id()) / "comm").write_text(name)


def _threads_named(name: str) -> list[int]:
    return [int(task.name) for task in _TASKS.iterdir() if _name_of(task) == name]


def _name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
