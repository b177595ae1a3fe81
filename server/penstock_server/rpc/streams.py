"""Streams of plans and their epochs: which is open, what waits for the thread that steps, and how far that thread is.

A stream is a session with an epoch. A newer one fences the older: what the old one still has queued is skipped.
`Streams` is what the step loop needs of them. `QueuedStreams` keeps them for the endpoint in Python; the one in Rust
keeps its own.
"""

import threading
import time
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from penstock_server.base.errors import InvalidPlan, PenstockError, ShardFailed, StaleEpoch
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Plan
from penstock_server.rpc.session import QueuedSession

# Ranks compare epochs as signed 64-bit numbers.
_EPOCH_LIMIT = 2**63


class Session(Protocol):
    """One stream of plans and its outcomes, as the thread that steps sees it."""

    @property
    def epoch(self) -> int:
        """Greater than that of every stream before."""

    @property
    def closed(self) -> bool:
        """Whether nobody reads its outcomes any more."""

    def deliver(self, outcome: Outcome) -> None:
        """Send an outcome on the stream."""

    def close(self, error: PenstockError | None = None) -> None:
        """End the stream after the outcomes delivered so far; later calls change nothing."""


class Taken(NamedTuple):
    """The next event: a plan, or the end of a stream. With neither, the thread that steps is wanted elsewhere."""

    session: Session | None
    plan: Plan | None


class Streams(Protocol):
    """Where the thread that steps takes its plans, and whom it tells how far it is."""

    def take(self, at_most_s: float | None) -> Taken | None:
        """The next event; None if nothing came for so long. A plan that cannot be read ends its stream."""

    def set_running(self, runs: bool) -> None:
        """Whether a step runs, from now on."""

    def set_finished(self, session: Session, step: int) -> None:
        """A step of this stream is computed."""

    def rest(self) -> None:
        """Tell the thread that steps to take no more, once what came before is done."""

    def fail(self, error: ShardFailed) -> None:
        """End the open stream, and those that come."""

    def stop(self) -> None:
        """End the open stream, and have the thread that steps rest: the process stops."""


class StepProgress(NamedTuple):
    """The progress that a heartbeat reports."""

    epoch: int
    finished_step: int
    running_ms: int


class QueuedStreams:
    """Streams that threads of Python read. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self.failure: ShardFailed | None = None
        self._inbox: SimpleQueue[Taken] = SimpleQueue()
        self._lock = threading.Lock()
        self._session: QueuedSession | None = None
        self._finished_step = 0
        self._running_since: float | None = None

    @property
    def last_epoch(self) -> int:
        """Greatest epoch seen."""
        return self._session.epoch if self._session else 0

    def progress(self) -> StepProgress:
        """The progress that a heartbeat reports. Never blocks, even while a step runs."""
        since = self._running_since
        running_ms = 0 if since is None else max(1, int((time.monotonic() - since) * 1000))
        return StepProgress(self.last_epoch, self._finished_step, running_ms)

    def open(self, epoch: int) -> QueuedSession:
        """A session for a new stream; ends the one before. Raises StaleEpoch unless the epoch is the greatest yet."""
        if epoch >= _EPOCH_LIMIT:
            raise InvalidPlan(f"epoch {epoch} is not below {_EPOCH_LIMIT}")
        with self._lock:
            if epoch <= self.last_epoch:
                raise StaleEpoch(f"epoch {epoch} is not greater than {self.last_epoch}, the newest seen")
            older, self._session = self._session, QueuedSession(epoch)
            if older is not None:
                older.close(StaleEpoch(f"epoch {older.epoch} was replaced by epoch {epoch}"))
            self._finished_step = 0
            if self.failure is not None:
                self._session.close(self.failure)
            return self._session

    def submit(self, session: QueuedSession, plan: Plan) -> None:
        """Queue a plan; waits while the stream has too many queued."""
        try:
            if not session.accepts(plan):
                return
        except InvalidPlan as error:
            session.close(error)
            return
        session.room.acquire()
        self._inbox.put(Taken(session, plan))

    def finish(self, session: QueuedSession) -> None:
        """No more plans will come. Those queued are computed, then the slots are dropped."""
        self._inbox.put(Taken(session, None))

    def take(self, at_most_s: float | None) -> Taken | None:
        """See `Streams`."""
        try:
            taken = self._inbox.get(timeout=at_most_s)
        except Empty:
            return None
        if taken.plan is not None and isinstance(taken.session, QueuedSession):
            taken.session.room.release()
        return taken

    def set_running(self, runs: bool) -> None:
        """See `Streams`."""
        self._running_since = time.monotonic() if runs else None

    def set_finished(self, session: Session, step: int) -> None:
        """See `Streams`."""
        if session.epoch == self.last_epoch:
            self._finished_step = step

    def rest(self) -> None:
        """See `Streams`."""
        self._inbox.put(Taken(None, None))

    def fail(self, error: ShardFailed) -> None:
        """See `Streams`."""
        with self._lock:
            self.failure = error
            if self._session is not None:
                self._session.close(error)

    def stop(self) -> None:
        """See `Streams`."""
        with self._lock:
            if self._session is not None:
                self._session.close(ShardFailed("the shard is stopping"))
        self.rest()
