"""Threads that build grammars and compute what they allow, so that one which takes long holds up neither a step nor the
grammars of other slots.

A call of llguidance cannot be interrupted. So a thread whose job takes long goes on at the lowest priority, among those
for long jobs, and another thread takes its place. All are daemons: a job must not keep the process alive.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

# Schemas are compiled by recursion; the router bounds the levels for this (grammar/schema.rs).
_STACK_BYTES = 64 << 20
# A thread that is so long at a job is held by it. Those of usual grammars take a tenth of a millisecond.
_HELD_S = 0.02
# Most threads for long jobs. When so many are held by one each, further long jobs hold the threads they began on.
_MAX_LONG_THREADS = 4
_LOWEST_PRIORITY = 19


class Job:
    """Work on one of the threads. Its result is the reason why it failed, or nothing."""

    def __init__(self, work: Callable[[], str]) -> None:
        self.done: Future[str] = Future()
        self.work = work
        self._thread: _Thread | None = None
        self._begun_s = 0.0
        self._cost_s = 0.0

    def cost_s(self) -> float:
        """Processor time that it took so far: other load on the machine does not count."""
        if self._thread is None:
            return 0.0
        running_s = self._thread.processor_s() - self._begun_s
        return self._cost_s if self.done.done() else running_s

    def run(self, thread: "_Thread") -> None:
        """Do the work on this thread."""
        self._begun_s = thread.processor_s()
        self._thread = thread
        try:
            reason = self.work()
        except Exception as error:  # whatever is wrong with a grammar fails its slot alone
            reason = str(error) or type(error).__name__
        self._cost_s = thread.processor_s() - self._begun_s
        self.done.set_result(reason)


class GrammarThreads:
    """The threads of a shard. Used from one thread."""

    def __init__(self, num_threads: int | None = None) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._long_jobs: SimpleQueue[Job] = SimpleQueue()
        count = num_threads or max(2, min(8, (os.cpu_count() or 1) // 4))
        self._threads = [_Thread(self._jobs) for _ in range(count)]
        self._num_long_threads = 1
        _Thread(self._long_jobs).lower_priority()

    def submit(self, work: Callable[[], str], is_long: bool = False) -> Job:
        """A job that is started at once; `is_long` if it is known to take long."""
        job = Job(work)
        self.start(job, is_long)
        return job

    def start(self, job: Job, is_long: bool = False) -> None:
        """Start a job that was made before."""
        (self._long_jobs if is_long else self._jobs).put(job)

    def set_long_jobs_apart(self) -> None:
        """Give the threads that are held by long jobs a lower priority, and put others in their places."""
        for number, thread in enumerate(self._threads):
            if thread.is_held() and self._num_long_threads < _MAX_LONG_THREADS:
                thread.jobs = self._long_jobs
                thread.lower_priority()
                self._num_long_threads += 1
                self._threads[number] = _Thread(self._jobs)


class _Thread:
    """One thread, which does jobs of a queue for ever. `jobs` may be changed while it does one."""

    def __init__(self, jobs: "SimpleQueue[Job]") -> None:
        self.jobs = jobs
        self._busy_since: float | None = None
        self._clock = 0
        self._thread = threading.Thread(target=self._run, name="grammar", daemon=True)
        # Threads take the size that is set while they start.
        usual = threading.stack_size(_STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(usual)

    def processor_s(self) -> float:
        """Processor time of this thread since its start."""
        return time.clock_gettime(self._clock)

    def is_held(self) -> bool:
        """Whether its job takes long."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > _HELD_S

    def lower_priority(self) -> None:
        """From now on it only gets processor time that nobody else wants."""
        if sys.platform == "linux":  # elsewhere priorities belong to processes
            os.setpriority(os.PRIO_PROCESS, self._thread.native_id or 0, _LOWEST_PRIORITY)

    def _run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        while True:
            job = self.jobs.get()
            self._busy_since = time.monotonic()
            job.run(self)
            self._busy_since = None
