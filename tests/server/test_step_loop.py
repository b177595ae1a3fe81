"""Streams and epochs, against an engine whose steps take as long as the test wants."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from penstock_server.base.errors import InvalidPlan, ShardFailed, StaleEpoch
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Plan
from penstock_server.rpc.session import Session
from penstock_server.rpc.step_loop import StepLoop
from penstock_server.rpc.stepping_thread import SteppingThread

WAIT_S = 30


class FakePending:
    """A step on an imaginary device: done when it is told so. It is launched as a whole when that is asked again."""

    def __init__(self, plan: Plan, done: threading.Event) -> None:
        self.plan = plan
        self.done = done
        self.num_missing = 2

    def proceed(self, wait_s: float = 0.0) -> bool:
        self.num_missing = max(0, self.num_missing - 1)
        return self.num_missing == 0

    def ready(self) -> bool:
        return self.num_missing == 0 and self.done.is_set()

    def resolve(self) -> Outcome:
        self.num_missing = 0
        assert self.done.wait(WAIT_S)
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
        self.pending.append(FakePending(plan, self.done))
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
def loop(engine: FakeEngine, failed: threading.Event, thread: SteppingThread) -> Iterator[StepLoop]:
    loop = StepLoop(engine, failed.set, thread)  # type: ignore[arg-type]
    loop.start()
    yield loop
    engine.done.set()


def steps(session: Session, count: int) -> list[int]:
    outcomes = session.outcomes()
    return [next(outcomes).step for _ in range(count)]


def test_outcomes_answer_plans_in_order(loop: StepLoop) -> None:
    session = loop.open(1)
    for step in (1, 2, 3):
        loop.submit(session, Plan(1, step))
    loop.finish(session)
    assert [outcome.step for outcome in session.outcomes()] == [1, 2, 3]


def test_steps_run_on_the_thread_that_loads_and_closes(
    loop: StepLoop, engine: FakeEngine, thread: SteppingThread
) -> None:
    session = loop.open(1)
    loop.submit(session, Plan(1, 1))
    assert steps(session, 1) == [1]
    loop.stop()
    # Only once the loop has ended can the thread do something else.
    assert engine.threads == {thread.call(threading.get_ident)}


def test_a_step_that_runs_is_computed_before_the_thread_does_anything_else(
    loop: StepLoop, engine: FakeEngine, thread: SteppingThread
) -> None:
    engine.done.clear()
    session = loop.open(1)
    loop.submit(session, Plan(1, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    loop.stop()
    closed = thread.start(engine.done.is_set)
    assert not closed.done()
    engine.done.set()
    assert closed.result(WAIT_S)


def test_the_next_plan_is_launched_while_one_runs(loop: StepLoop, engine: FakeEngine) -> None:
    engine.done.clear()
    session = loop.open(1)
    for step in (1, 2):
        loop.submit(session, Plan(1, step))
        assert engine.launched.acquire(timeout=WAIT_S)
    assert loop.progress().finished_step == 0
    engine.done.set()
    assert steps(session, 2) == [1, 2]
    assert loop.progress().finished_step == 2


def test_a_running_step_shows_in_the_progress(loop: StepLoop, engine: FakeEngine) -> None:
    engine.done.clear()
    session = loop.open(4)
    loop.submit(session, Plan(4, 1))
    assert engine.launched.acquire(timeout=WAIT_S)
    assert loop.progress()[:2] == (4, 0)
    assert loop.progress().running_ms >= 1
    engine.done.set()
    assert steps(session, 1) == [1]


def test_a_newer_epoch_ends_the_older_and_drops_its_slots(loop: StepLoop, engine: FakeEngine) -> None:
    old = loop.open(3)
    loop.submit(old, Plan(3, 1))
    assert steps(old, 1) == [1]
    new = loop.open(5)
    with pytest.raises(StaleEpoch, match="replaced by epoch 5"):
        list(old.outcomes())
    loop.submit(old, Plan(3, 2))
    loop.submit(new, Plan(5, 1))
    assert steps(new, 1) == [1]
    assert engine.calls == ["clear", (3, 1), "clear", (5, 1)]


@pytest.mark.parametrize("epoch", [5, 4, 0])
def test_an_epoch_that_is_not_newer_is_refused(loop: StepLoop, epoch: int) -> None:
    loop.open(5)
    with pytest.raises(StaleEpoch, match="not greater than 5"):
        loop.open(epoch)


def test_an_epoch_too_large_to_compare_is_refused(loop: StepLoop) -> None:
    with pytest.raises(InvalidPlan, match="epoch"):
        loop.open(2**63)


def test_plans_of_an_older_epoch_are_ignored(loop: StepLoop) -> None:
    session = loop.open(5)
    loop.submit(session, Plan(4, 9))
    loop.submit(session, Plan(5, 1))
    assert steps(session, 1) == [1]


@pytest.mark.parametrize("plan", [Plan(5, 2), Plan(5, 0), Plan(6, 1)])
def test_plans_out_of_order_end_the_stream(loop: StepLoop, plan: Plan) -> None:
    session = loop.open(5)
    loop.submit(session, plan)
    with pytest.raises(InvalidPlan):
        list(session.outcomes())


def test_an_invalid_plan_ends_its_stream_and_not_the_shard(
    loop: StepLoop, engine: FakeEngine, failed: threading.Event
) -> None:
    engine.error = InvalidPlan("bad")
    session = loop.open(1)
    loop.submit(session, Plan(1, 1))
    with pytest.raises(InvalidPlan, match="bad"):
        list(session.outcomes())
    engine.error = None
    again = loop.open(2)
    loop.submit(again, Plan(2, 1))
    assert steps(again, 1) == [1]
    assert not failed.is_set()


def test_a_step_that_breaks_ends_the_shard(
    loop: StepLoop, engine: FakeEngine, failed: threading.Event
) -> None:
    engine.error = RuntimeError("broken")
    session = loop.open(1)
    loop.submit(session, Plan(1, 1))
    with pytest.raises(ShardFailed, match="broken"):
        list(session.outcomes())
    assert failed.wait(WAIT_S)
    with pytest.raises(ShardFailed):
        list(loop.open(2).outcomes())


def test_slots_are_dropped_when_the_stream_ends(loop: StepLoop, engine: FakeEngine) -> None:
    session = loop.open(1)
    loop.submit(session, Plan(1, 1))
    loop.finish(session)
    assert [outcome.step for outcome in session.outcomes()] == [1]
    last = loop.open(2)
    loop.submit(last, Plan(2, 1))
    assert steps(last, 1) == [1]
    assert engine.calls[:3] == ["clear", (1, 1), "clear"]
