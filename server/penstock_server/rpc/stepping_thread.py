"""The one thread that works with the device, from loading to the end.

cuBLAS has handles and workspaces for every thread, CUDA a current device, OpenMP a team of threads: what one thread has
warmed up, another would make again, and a captured graph would keep the memory of both.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SteppingThread:
    """Does one work after the other. A daemon: a step that hangs must not keep the process alive."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="stepping", daemon=True).start()

    def start(
        self, work: Callable[Arguments, Result], *given: Arguments.args, **more: Arguments.kwargs
    ) -> Future[Result]:
        """Begin with a work when those before it are done."""
        done: Future[Result] = Future()
        self._works.put(partial(_fulfil, done, partial(work, *given, **more)))
        return done

    def call(
        self, work: Callable[Arguments, Result], *given: Arguments.args, **more: Arguments.kwargs
    ) -> Result:
        """Its result, or the error that it raises."""
        return self.start(work, *given, **more).result()

    def _run(self) -> None:
        while True:
            self._works.get()()


def _fulfil(done: Future[Result], work: Callable[[], Result]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:  # it belongs to who waits for the result
        done.set_exception(error)
