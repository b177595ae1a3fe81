"""One stream that threads of Python serve: plans from a router, and the outcomes that go back to it."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue

from penstock_server.base.errors import InvalidPlan, PenstockError
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Plan

# Plans of one stream that may wait; when there are more, the reader stops reading, and gRPC's flow control
# stops the sender.
_MAX_QUEUED = 64


class QueuedSession:
    """One stream of plans and its outcomes. Closed once, with an error or without."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.room = threading.Semaphore(_MAX_QUEUED)
        self.closed = False
        self._next_step = 1
        self._outbox: SimpleQueue[Outcome | PenstockError | None] = SimpleQueue()

    def accepts(self, plan: Plan) -> bool:
        """Whether a plan is this stream's next; one of an older epoch is to be ignored. Raises InvalidPlan."""
        if plan.epoch < self.epoch:
            return False
        if plan.epoch > self.epoch:
            raise InvalidPlan(
                f"epoch {plan.epoch} in the stream of epoch {self.epoch}; a new epoch opens a new stream"
            )
        if plan.step != self._next_step:
            raise InvalidPlan(f"step {plan.step} came where step {self._next_step} was due")
        self._next_step += 1
        return True

    def deliver(self, outcome: Outcome) -> None:
        """Send an outcome on the stream."""
        self._outbox.put(outcome)

    def close(self, error: PenstockError | None = None) -> None:
        """End the stream after the outcomes delivered so far; later calls change nothing."""
        if not self.closed:
            self.closed = True
            self._outbox.put(error)

    def outcomes(self) -> Iterator[Outcome]:
        """Every outcome, until the stream is closed; raises the error that closed it."""
        while (item := self._outbox.get()) is not None:
            if isinstance(item, PenstockError):
                raise item
            yield item
