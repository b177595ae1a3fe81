"""Steps the engine on its thread, and the streams that feed it.

A stream is a `Session` with an epoch. A newer one fences the older: what the old one still has queued is skipped, and
its slots are dropped before the first plan of the new one runs.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import NamedTuple

from penstock_server.base.errors import InvalidPlan, ShardFailed, StaleEpoch
from penstock_server.engine.engine import Engine
from penstock_server.engine.pending import PendingOutcome
from penstock_server.engine.plan import Plan
from penstock_server.rpc.session import Session
from penstock_server.rpc.stepping_thread import SteppingThread

logger = logging.getLogger(__name__)

# Steps on the device at a time: one runs, one waits.
_MAX_LAUNCHED = 2
# Ranks compare epochs as signed 64-bit numbers.
_EPOCH_LIMIT = 2**63
# While a step runs on the device, how often to look whether it has finished; a new plan is seen at once.
_POLL_S = 0.0005


class StepProgress(NamedTuple):
    """What a heartbeat reports."""

    epoch: int
    finished_step: int
    running_ms: int


class _Item(NamedTuple):
    """A plan, or None for the end of its stream."""

    session: Session
    plan: Plan | None


class _Launched(NamedTuple):
    session: Session
    pending: PendingOutcome


class StepLoop:
    """Owns the engine, and steps it on the thread that loaded it. Its methods may be called from any thread."""

    def __init__(self, engine: Engine, on_failure: Callable[[], None], thread: SteppingThread) -> None:
        self.engine = engine
        self.failure: ShardFailed | None = None
        self._on_failure = on_failure
        self._thread = thread
        # None: the process stops.
        self._inbox: SimpleQueue[_Item | None] = SimpleQueue()
        self._launched: deque[_Launched] = deque()
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._stepped: Session | None = None
        self._finished_step = 0
        self._running_since: float | None = None

    def start(self) -> None:
        """Begin to take plans."""
        self._thread.start(self._run)

    @property
    def last_epoch(self) -> int:
        """Greatest epoch seen."""
        return self._session.epoch if self._session else 0

    def progress(self) -> StepProgress:
        """What a heartbeat reports. Never blocks, even while a step runs."""
        since = self._running_since
        running_ms = 0 if since is None else max(1, int((time.monotonic() - since) * 1000))
        return StepProgress(self.last_epoch, self._finished_step, running_ms)

    def open(self, epoch: int) -> Session:
        """A session for a new stream; ends the one before. Raises StaleEpoch unless the epoch is the greatest yet."""
        if epoch >= _EPOCH_LIMIT:
            raise InvalidPlan(f"epoch {epoch} is not below {_EPOCH_LIMIT}")
        with self._lock:
            if epoch <= self.last_epoch:
                raise StaleEpoch(f"epoch {epoch} is not greater than {self.last_epoch}, the newest seen")
            older, self._session = self._session, Session(epoch)
            if older is not None:
                older.close(StaleEpoch(f"epoch {older.epoch} was replaced by epoch {epoch}"))
            self._finished_step = 0
            if self.failure is not None:
                self._session.close(self.failure)
            return self._session

    def submit(self, session: Session, plan: Plan) -> None:
        """Queue a plan; waits while the stream has too many queued."""
        try:
            if not session.accepts(plan):
                return
        except InvalidPlan as error:
            session.close(error)
            return
        session.room.acquire()
        self._inbox.put(_Item(session, plan))

    def finish(self, session: Session) -> None:
        """No more plans will come. Those queued are computed, then the slots are dropped."""
        self._inbox.put(_Item(session, None))

    def stop(self) -> None:
        """End the open stream, because the process stops, and what the thread does, once the last step is computed."""
        with self._lock:
            if self._session is not None:
                self._session.close(ShardFailed("the shard is stopping"))
        self._inbox.put(None)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except Exception as error:  # whatever went wrong in a step: the process ends
            if not isinstance(error, ShardFailed):
                logger.exception("a step failed")
            self._fail(error if isinstance(error, ShardFailed) else ShardFailed(f"a step failed: {error!r}"))

    def _turn(self) -> bool:
        """Launch what is queued before waiting for what runs: the device never waits for the host.

        False if the process stops.
        """
        if self._launched and not self._launched[-1].pending.proceed(_POLL_S):
            # It waits for masks, which may need the tokens of the step before.
            self._finish_ready()
            return True
        try:
            item = self._inbox.get(timeout=_POLL_S if self._launched else None)
        except Empty:
            pass
        else:
            if item is None:
                self._drain()
                return False
            self._start_step(item)
        if len(self._launched) >= _MAX_LAUNCHED:
            self._finish_step()
        self._finish_ready()
        return True

    def _finish_ready(self) -> None:
        while self._launched and self._launched[0].pending.ready():
            self._finish_step()

    def _start_step(self, item: _Item) -> None:
        session, plan = item
        if plan is None:
            self._end(session)
            return
        session.room.release()
        if session.closed:
            return
        self._running_since = self._running_since or time.monotonic()
        if session is not self._stepped:
            self._drain()
            self.engine.clear()
            self._stepped = session
        try:
            if self.engine.agree(plan.epoch, plan.step):
                self._launched.append(_Launched(session, self.engine.launch(plan)))
        except InvalidPlan as error:
            self._drain()
            session.close(error)
        if not self._launched:
            self._running_since = None

    def _finish_step(self) -> None:
        session, pending = self._launched.popleft()
        outcome = pending.resolve()
        if session.epoch == self.last_epoch:
            self._finished_step = outcome.step
        self._running_since = time.monotonic() if self._launched else None
        if not session.closed:
            session.deliver(outcome)

    def _end(self, session: Session) -> None:
        self._drain()
        session.close()
        if session is self._stepped:
            self.engine.clear()
            self._stepped = None

    def _drain(self) -> None:
        while self._launched:
            self._finish_step()

    def _fail(self, error: ShardFailed) -> None:
        with self._lock:
            self.failure = error
            if self._session is not None:
                self._session.close(error)
        self._on_failure()
