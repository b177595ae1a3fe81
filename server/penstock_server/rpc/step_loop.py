"""Steps the engine on its thread, with the plans that its streams bring.

The slots of a stream are dropped before the first plan of a newer one runs.
"""

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from penstock_server.base.errors import InvalidPlan, PenstockError, ShardAsleep, ShardFailed, StaleEpoch
from penstock_server.engine.engine import Engine
from penstock_server.engine.pending import Launched
from penstock_server.engine.plan import Plan
from penstock_server.rpc.stepping_thread import SteppingThread
from penstock_server.rpc.streams import Session, Streams

logger = logging.getLogger(__name__)

# While a step runs on the device, how often to look whether it has finished; a new plan is seen at once.
_POLL_S = 0.0005


class _Launched(NamedTuple):
    session: Session
    pending: Launched


# Makes the engine whose steps are computed from now on; None: nothing can be computed. If it raises an error of
# `base/errors`, there is no engine either, and the shard goes on.
Change = Callable[[], Engine | None]
Result = TypeVar("Result")


class StepLoop:
    """Owns the engine, and steps it on the thread that loaded it."""

    def __init__(
        self, engine: Engine | None, streams: Streams, on_failure: Callable[[], None], thread: SteppingThread
    ) -> None:
        self.engine: Engine | None = engine
        self.failure: ShardFailed | None = None
        self._streams = streams
        self._on_failure = on_failure
        self._thread = thread
        self._launched: deque[_Launched] = deque()
        self._stepped: Session | None = None
        # The newest epoch of a stream, or of work between two steps.
        self._newest_epoch = 0

    def start(self) -> None:
        """Begin to take plans. It ends when the streams are stopped, once the last step is computed."""
        self._thread.start(self._run)

    def change(self, change: Change) -> Future[None]:
        """Replace the engine between two steps, on the thread that steps. The open stream ends."""
        done = self._thread.start(self._change, change)
        self.start()
        self._streams.rest()
        return done

    def between(self, epoch: int, work: Callable[[Engine], Result], is_exact: bool = False) -> Result:
        """Do something with the engine between two steps, on the thread that steps, for the stream of this epoch.

        Raises StaleEpoch where a newer stream was opened meanwhile; `is_exact`: unless it is the newest that has steps.
        """
        done = self._thread.start(self._between, epoch, work, is_exact)
        self.start()
        self._streams.rest()
        return done.result()

    def _between(self, epoch: int, work: Callable[[Engine], Result], is_exact: bool) -> Result:
        if self.failure is not None:
            raise self.failure
        if self.engine is None:
            raise ShardAsleep("the shard sleeps, and has no cache")
        if epoch < self._newest_epoch or (is_exact and epoch != self._newest_epoch):
            raise StaleEpoch(f"epoch {epoch} is over, or not begun: the newest is {self._newest_epoch}")
        self._newest_epoch = epoch
        return work(self.engine)

    def _change(self, change: Change) -> None:
        if self.failure is not None:
            raise self.failure
        if self._stepped is not None:
            self._stepped.close(ShardAsleep("the shard goes to sleep"))
        # Nothing may hold what the change is to free.
        self.engine = self._stepped = None
        try:
            self.engine = change()
        except ShardFailed as error:
            self._fail(error)
            raise
        except PenstockError:
            raise
        except Exception as error:
            logger.exception("a change of the engine failed")
            self._fail(ShardFailed(f"a change of the engine failed: {error!r}"))
            raise

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

        False if the thread is to rest.
        """
        if self._launched and not self._launched[-1].pending.proceed(_POLL_S):
            # It waits for masks, which may need the tokens of the step before.
            self._finish_ready()
            return True
        taken = self._streams.take(_POLL_S if self._launched else None)
        if taken is not None:
            if taken.session is None:
                self._drain()
                return False
            self._start_step(taken.session, taken.plan)
        if self.engine is not None and len(self._launched) >= self.engine.most_launched:
            self._finish_step()
        self._finish_ready(has_time=taken is None)
        return True

    def _finish_ready(self, has_time: bool = True) -> None:
        """`has_time`: no plan has come. Only then a step is finished that other stages compute: nobody waits for it."""
        while self._launched and self._launched[0].pending.ready():
            if self._launched[0].pending.learn is not None and not has_time:
                return
            self._finish_step()

    def _start_step(self, session: Session, plan: Plan | None) -> None:
        if plan is None:
            self._end(session)
            return
        if session.closed:
            return
        if self.engine is None:
            session.close(ShardAsleep("the shard sleeps"))
            return
        if not self._launched:
            self._streams.set_running(True)
        if session is not self._stepped:
            self._drain()
            self.engine.clear()
            self._stepped = session
            self._newest_epoch = max(self._newest_epoch, session.epoch)
        try:
            if self.engine.agree(plan.epoch, plan.step):
                self._launched.append(_Launched(session, self.engine.launch(plan)))
        except InvalidPlan as error:
            self._drain()
            session.close(error)
        except StaleEpoch as error:
            # Another rank has a newer plan, and never gets this one.
            session.close(error)
            self._drain()
        if not self._launched:
            self._streams.set_running(False)

    def _finish_step(self) -> None:
        session, pending = self._launched.popleft()
        try:
            outcome = pending.resolve()
        except StaleEpoch as error:
            session.close(error)
            self._streams.set_running(bool(self._launched))
            return
        self._streams.set_finished(session, outcome.step)
        self._streams.set_running(bool(self._launched))
        if not session.closed:
            session.deliver(outcome)

    def _end(self, session: Session) -> None:
        self._drain()
        session.close()
        if session is self._stepped and self.engine is not None:
            self.engine.clear()
            self._stepped = None

    def _drain(self) -> None:
        while self._launched:
            session, pending = self._launched[0]
            if pending.learn is not None and session.closed:
                # Nobody reads what would be told, and maybe nobody tells it.
                self._launched.popleft()
                self._streams.set_running(bool(self._launched))
            else:
                self._finish_step()

    def _fail(self, error: ShardFailed) -> None:
        self.failure = error
        self._streams.fail(error)
        self._on_failure()
