"""Streams and epochs, against an engine whose steps take as long as the test wants."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from penstock_server.base.errors import InvalidPlan, ShardAsleep, ShardFailed, StaleEpoch
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Plan
from penstock_server.rpc.session import QueuedSession as Session
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.stepping_thread import SteppingThread
from penstock_server.rpc.streams import QueuedStreams

WAIT_S = 30
# A step that the last stage never gets.
NEVER_TOLD = 3


class FakePending:
    """A step on an imaginary device: done when it is told so. It is launched as a whole when that is asked again."""

    def __init__(self, plan: Plan, done: threading.Event, is_told: bool = False) -> None:
        self.plan = plan
        self.done = done
        self.num_missing = 2
        # Set where another stage tells what is found.
        self.learn = self._learn if is_told else None

    def _learn(self) -> None:
        assert self.done.wait(WAIT_S)

    def proceed(self, wait_s: float = 0.0) -> bool:
        self.num_missing = max(0, self.num_missing - 1)
        return self.num_missing == 0

    def ready(self) -> bool:
        return self.num_missing == 0 and self.done.is_set()

    def resolve(self) -> Outcome:
        self.num_missing = 0
        assert self.done.wait(WAIT_S)
        if self.learn is not None and self.plan.step == NEVER_TOLD:
            raise StaleEpoch("it did not reach the last stage")
        return Outcome(self.plan.epoch, self.plan.step)


class FakeEngine:
    """Records what the loop asks for."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.threads: set[int] = set()
        self.pending: list[FakePending] = []
        self.launched = threading.Semaphore(0)
        self.done = threading.Event()
        self.done.set()
        self.error: Exception | None = None
        self.is_told = False
        self.most_launched = 2

    def be_a_stage(self) -> None:
        """Makes this engine the first of two stages."""
        self.is_told, self.most_launched = True, 3

    def agree(self, epoch: int, step: int) -> bool:
        return True

    def clear(self) -> None:
        self.calls.append("clear")

    def launch(self, plan: Plan) -> FakePending:
        if self.error is not None:
            raise self.error
        self.threads.add(threading.get_ident())
        assert not any(step.num_missing for step in self.pending), "a step before is not launched as a whole"
        self.calls.append((plan.epoch, plan.step))
        self.launched.release()
        self.pending.append(FakePending(plan, self.done, self.is_told))
        return self.pending[-1]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def failed() -> threading.Event:
    return threading.Event()


@pytest.fixture
def thread() -> SteppingThread:
    return SteppingThread()


@pytest.fixture
def streams(engine: FakeEngine, failed: threading.Event, thread: SteppingThread) -> Iterator[QueuedStreams]:
    """The streams that a step loop works on."""
    streams = QueuedStreams()
    StepLoop(engine, streams, failed.set, thread).start()  # type: ignore[arg-type]
    yield streams
    engine.done.set()


def steps(session: Session, count: int) -> list[int]:
    outcomes = session.outcomes()
    return [next(outcomes).step for _ in range(count)]


def test_outcomes_answer_plans_in_order(streams: QueuedStreams) -> None:
    session = streams.open(1)
    for step in (1, 2, 3):
        streams.submit(session, Plan(1, step))
    streams.finish(session)
    assert [outcome.step for outcome in session.outcomes()] == [1, 2, 3]


def test_steps_run_on_the_thread_that_loads_and_closes(
    streams: QueuedStreams, engine: FakeEngine, thread: SteppingThread
) -> None:
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    assert steps(session, 1) == [1]
    streams.stop()
    # Only once the loop has ended can the thread do something else.
    assert engine.threads == {thread.call(threading.get_ident)}


def test_a_step_that_runs_is_computed_before_the_thread_does_anything_else(
    streams: QueuedStreams, engine: FakeEngine, thread: SteppingThread
) -> None:
    engine.done.clear()
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    streams.stop()
    closed = thread.start(engine.done.is_set)
    assert not closed.done()
    engine.done.set()
    assert closed.result(WAIT_S)


@pytest.mark.parametrize("is_stage", [False, True], ids=["alone", "stage"])
def test_the_next_plan_is_launched_while_one_runs(
    streams: QueuedStreams, engine: FakeEngine, is_stage: bool
) -> None:
    """Here, or in a stage behind."""
    if is_stage:
        engine.be_a_stage()
    engine.done.clear()
    session = streams.open(1)
    for step in (1, 2):
        streams.submit(session, Plan(1, step))
        assert engine.launched.acquire(timeout=WAIT_S)
    assert streams.progress().finished_step == 0
    engine.done.set()
    assert steps(session, 2) == [1, 2]
    assert streams.progress().finished_step == 2


def test_a_stream_with_a_step_that_the_last_stage_never_gets_ends(
    streams: QueuedStreams, engine: FakeEngine
) -> None:
    engine.be_a_stage()
    session = streams.open(1)
    for step in (1, 2, NEVER_TOLD):
        streams.submit(session, Plan(1, step))
    with pytest.raises(StaleEpoch, match="did not reach the last stage"):
        list(session.outcomes())
    newer = streams.open(2)
    streams.submit(newer, Plan(2, 1))
    assert steps(newer, 1) == [1]


def test_nobody_waits_for_what_other_stages_tell_a_stream_that_is_closed(
    streams: QueuedStreams, engine: FakeEngine
) -> None:
    engine.be_a_stage()
    engine.done.clear()
    old = streams.open(1)
    streams.submit(old, Plan(1, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    newer = streams.open(2)
    streams.submit(newer, Plan(2, 1))
    assert engine.launched.acquire(timeout=WAIT_S), "it waits for the older stream"
    engine.done.set()
    assert steps(newer, 1) == [1]


def test_a_running_step_shows_in_the_progress(streams: QueuedStreams, engine: FakeEngine) -> None:
    engine.done.clear()
    session = streams.open(4)
    streams.submit(session, Plan(4, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    assert streams.progress()[:2] == (4, 0)
    assert streams.progress().running_ms >= 1
    engine.done.set()
    assert steps(session, 1) == [1]


def test_a_newer_epoch_ends_the_older_and_drops_its_slots(streams: QueuedStreams, engine: FakeEngine) -> None:
    old = streams.open(3)
    streams.submit(old, Plan(3, 1))
    assert steps(old, 1) == [1]
    new = streams.open(5)
    with pytest.raises(StaleEpoch, match="replaced by epoch 5"):
        list(old.outcomes())
    streams.submit(old, Plan(3, 2))
    streams.submit(new, Plan(5, 1))
    assert steps(new, 1) == [1]
    assert engine.calls == ["clear", (3, 1), "clear", (5, 1)]


@pytest.mark.parametrize("epoch", [5, 4, 0])
def test_an_epoch_that_is_not_newer_is_refused(streams: QueuedStreams, epoch: int) -> None:
    streams.open(5)
    with pytest.raises(StaleEpoch, match="not greater than 5"):
        streams.open(epoch)


def test_an_epoch_too_large_to_compare_is_refused(streams: QueuedStreams) -> None:
    with pytest.raises(InvalidPlan, match="epoch"):
        streams.open(2**63)


def test_plans_of_an_older_epoch_are_ignored(streams: QueuedStreams) -> None:
    session = streams.open(5)
    streams.submit(session, Plan(4, 9))
    streams.submit(session, Plan(5, 1))
    assert steps(session, 1) == [1]


@pytest.mark.parametrize("plan", [Plan(5, 2), Plan(5, 0), Plan(6, 1)])
def test_plans_out_of_order_end_the_stream(streams: QueuedStreams, plan: Plan) -> None:
    session = streams.open(5)
    streams.submit(session, plan)
    with pytest.raises(InvalidPlan):
        list(session.outcomes())


def test_an_invalid_plan_ends_its_stream_and_not_the_shard(
    streams: QueuedStreams, engine: FakeEngine, failed: threading.Event
) -> None:
    engine.error = InvalidPlan("bad")
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    with pytest.raises(InvalidPlan, match="bad"):
        list(session.outcomes())
    engine.error = None
    again = streams.open(2)
    streams.submit(again, Plan(2, 1))
    assert steps(again, 1) == [1]
    assert not failed.is_set()


def test_a_step_that_breaks_ends_the_shard(
    streams: QueuedStreams, engine: FakeEngine, failed: threading.Event
) -> None:
    engine.error = RuntimeError("broken")
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    with pytest.raises(ShardFailed, match="broken"):
        list(session.outcomes())
    assert failed.wait(WAIT_S)
    with pytest.raises(ShardFailed):
        list(streams.open(2).outcomes())


def test_slots_are_dropped_when_the_stream_ends(streams: QueuedStreams, engine: FakeEngine) -> None:
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    streams.finish(session)
    assert [outcome.step for outcome in session.outcomes()] == [1]
    last = streams.open(2)
    streams.submit(last, Plan(2, 1))
    assert steps(last, 1) == [1]
    assert engine.calls[:3] == ["clear", (1, 1), "clear"]


def test_the_engine_is_replaced_between_two_steps(
    engine: FakeEngine, failed: threading.Event, thread: SteppingThread
) -> None:
    streams = QueuedStreams()
    loop = StepLoop(engine, streams, failed.set, thread)  # type: ignore[arg-type]
    loop.start()
    engine.done.clear()
    session = streams.open(1)
    streams.submit(session, Plan(1, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    changed = loop.change(lambda: None)
    assert not changed.done(), "a step runs"
    engine.done.set()
    changed.result(WAIT_S)
    outcomes = session.outcomes()
    assert next(outcomes).step == 1
    with pytest.raises(ShardAsleep, match="goes to sleep"):
        next(outcomes)
    late = streams.open(2)
    streams.submit(late, Plan(2, 1))
    with pytest.raises(ShardAsleep, match="the shard sleeps"):
        next(late.outcomes())
    loop.change(lambda: engine).result(WAIT_S)  # type: ignore[arg-type,return-value]
    session = streams.open(3)
    streams.submit(session, Plan(3, 1))
    assert steps(session, 1) == [1]
    assert not failed.is_set()
    streams.stop()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ShardFailed("another rank is gone")])
def test_a_change_that_goes_wrong_ends_the_shard_unless_it_says_why(
    engine: FakeEngine, failed: threading.Event, thread: SteppingThread, error: Exception
) -> None:
    loop = StepLoop(engine, QueuedStreams(), failed.set, thread)  # type: ignore[arg-type]
    loop.start()

    def refuse() -> None:
        raise ShardAsleep("no memory")

    def fail() -> None:
        raise error

    with pytest.raises(ShardAsleep, match="no memory"):
        loop.change(refuse).result(WAIT_S)
    assert not failed.is_set()
    with pytest.raises(type(error), match=str(error)):
        loop.change(fail).result(WAIT_S)
    assert failed.wait(WAIT_S)
    assert isinstance(loop.failure, ShardFailed)
