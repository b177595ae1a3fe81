"""Threads that build grammars and compute what they allow, so that one which takes long holds up neither a step nor the
grammars of other slots.

A call of llguidance cannot be interrupted. So a thread whose job takes long ends this job at a low priority, and
another takes its place at once. A job that is known to take long is done on one of the threads for these, whose calls
of llguidance never hold the interpreter's lock. Grammars are built at a low priority: one client's new schemas take
only a small part of the processor time that steps want. All are daemons: a job must not keep the process alive.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum, auto
from queue import SimpleQueue
from typing import Protocol

from penstock_server.base.config import GRAMMAR_STACK_BYTES
from penstock_server.engine import low_priority
from penstock_server.engine.low_priority import LowPriority, give_way

# A thread that has worked so long at a job is held by it. Those of usual grammars take a tenth of a millisecond.
_HELD_S = 0.02
# Threads for long jobs, and most threads that end a job which turned out to be long. When there are so many, further
# ones hold the threads they began on.
_NUM_LONG_THREADS = 2
_MAX_ENDING_THREADS = 3


class Kind(Enum):
    """The kind of a job; it decides on which thread the job runs."""

    # A mask for a step that takes the usual time.
    MASK = auto()
    # For a step, and known to take long.
    LONG = auto()
    # A grammar is built.
    BUILD = auto()


# Does the work of a job, with calls of llguidance on that thread if there is one. Returns why it failed, or nothing; or
# the kind of thread on which the job goes on, with the work that it has then.
Work = Callable[[LowPriority | None], str | Kind]


class Worker(Protocol):
    """A thread that does jobs."""

    low_priority: LowPriority | None

    def processor_s(self) -> float:
        """Processor time that it took since its start, with that of its thread of a low priority."""


class Caller:
    """The thread that starts a job, if it does the job itself."""

    low_priority: LowPriority | None = None

    def processor_s(self) -> float:
        """Processor time of this thread."""
        return time.thread_time()


class Job:
    """Work on one of the threads, or on its caller's. Its result is the reason why it failed, or nothing."""

    def __init__(self, work: Work) -> None:
        self.done: Future[str] = Future()
        self.work = work
        # The thread that works at it, with its processor time when it began.
        self._current: tuple[Worker, float] | None = None
        # On threads that it has left.
        self._cost_s = 0.0

    def cost_s(self) -> float:
        """Processor time that it took so far: other load on the machine does not count."""
        # In this order: what it takes now must not be counted twice where it leaves its thread meanwhile.
        cost_s, current = self._cost_s, self._current
        if current is None:
            return cost_s
        thread, begun_s = current
        try:
            return cost_s + thread.processor_s() - begun_s
        except OSError:  # the thread has just ended, with this job
            return self._cost_s

    def run(self, thread: Worker) -> Kind | None:
        """Do the work on this thread; returns the kind of thread on which the job goes on, if it is not done."""
        begun_s = thread.processor_s()
        self._current = thread, begun_s
        try:
            result = self.work(thread.low_priority)
        except Exception as error:  # whatever is wrong with a grammar fails its slot alone
            result = str(error) or type(error).__name__
        self._current = None
        self._cost_s += thread.processor_s() - begun_s
        if isinstance(result, Kind):
            return result
        self.done.set_result(result)
        return None


class GrammarThreads:
    """The threads of a shard. Used from one thread."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._jobs: dict[Kind, SimpleQueue[Job]] = {kind: SimpleQueue() for kind in Kind}
        count = num_threads or max(2, min(8, (os.cpu_count() or 1) // 4))
        # Fewer build: what a build takes, it takes from the steps of a small machine.
        kinds = [Kind.MASK] * count + [Kind.BUILD] * max(1, count // 2)
        self._threads = [self._thread(kind) for kind in kinds]
        self._ending: list[_Thread] = []
        for _ in range(_NUM_LONG_THREADS):
            self._thread(Kind.LONG)

    def start(self, job: Job, kind: Kind) -> Job:
        """Start a job; returns it."""
        self._jobs[kind].put(job)
        return job

    def set_long_jobs_apart(self) -> None:
        """Put others in the places of the threads that are held by long jobs; these end with their jobs."""
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        for number, thread in enumerate(self._threads):
            if thread.is_held() and len(self._ending) < _MAX_ENDING_THREADS:
                thread.end_with_job()
                self._ending.append(thread)
                self._threads[number] = self._thread(thread.kind)

    def _thread(self, kind: Kind) -> "_Thread":
        return _Thread(self._jobs, kind)


class _Thread:
    """One thread, which does jobs of a queue until it is to end."""

    def __init__(self, jobs: "dict[Kind, SimpleQueue[Job]]", kind: Kind) -> None:
        self.low_priority: LowPriority | None = None
        self.kind = kind
        self._jobs = jobs
        # Whether it has tried to get its thread of a low priority: with the first job, as most servers need none.
        self._is_prepared = False
        self._is_ending = False
        self._job: Job | None = None
        self._clock = 0
        self._thread = threading.Thread(target=self._run, name="grammar", daemon=True)
        # Threads take the size that is set while they start.
        usual = threading.stack_size(GRAMMAR_STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(usual)

    def processor_s(self) -> float:
        """Processor time of this thread, and of the one of a low priority, since their start."""
        apart_s = self.low_priority.processor_s() if self.low_priority else 0.0
        return time.clock_gettime(self._clock) + apart_s

    def is_held(self) -> bool:
        """Whether its job takes long: what other programs take of a processor is not the job's."""
        job = self._job
        return job is not None and job.cost_s() > _HELD_S

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()

    def end_with_job(self) -> None:
        """It gives way to others, and ends when its job is done."""
        # In this order: a thread that has ended has no priority.
        give_way(self._thread.native_id or 0)
        self._is_ending = True

    def _run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        if self.kind is Kind.BUILD:
            give_way(threading.get_native_id())
        while not self._is_ending:
            job = self._jobs[self.kind].get()
            if self.kind is Kind.LONG and not self._is_prepared:
                self.low_priority, self._is_prepared = low_priority.start(), True
            self._job = job
            onward = job.run(self)
            self._job = None
            if onward is not None:
                self._jobs[onward].put(job)
