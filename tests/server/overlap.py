"""Several drivers of one group of ranks, each with slots and blocks of its own: a step of each is in flight at a time,
as a scheduler sends plans to stages.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from driver import Driver, Execute
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.pending import Launched
from penstock_server.engine.plan import Plan

Result = TypeVar("Result")
# Runs a driver to its end.
Play = Callable[[Execute], Result]


def share(driver: Driver, number: int, num_slots: int, num_blocks: int) -> None:
    """Give a driver the slots and blocks that no other one has."""
    driver.free_slots = list(range(number * num_slots, (number + 1) * num_slots))
    driver.free_blocks = list(range(number * num_blocks, (number + 1) * num_blocks))


def play_overlapped(engines: Sequence[Engine], plays: Sequence[Play[Result]]) -> list[Result]:
    """The result of each play."""
    with ExitStack() as stack:
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in engines]
        players = [_Player(play, stack.enter_context(ThreadPoolExecutor(1))) for play in plays]
        try:
            _take_turns(players, engines, threads)
        except BaseException as error:
            # Else their threads would wait for ever, and this one for them.
            for player in players:
                player.fail(error)
            raise
        return [player.done.result() for player in players]


class _Player(Generic[Result]):
    """A driver on a thread of its own, and its step in flight."""

    def __init__(self, play: Play[Result], thread: ThreadPoolExecutor) -> None:
        self.flight: list[Future[Launched]] = []
        self._plans: SimpleQueue[Plan | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | BaseException] = SimpleQueue()
        self.done = thread.submit(play, self._execute)
        self.done.add_done_callback(lambda _: self._plans.put(None))

    def _execute(self, plan: Plan) -> Any:
        self._plans.put(plan)
        outcome = self._outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def fail(self, error: BaseException) -> None:
        """End what waits for an outcome, which does not come."""
        self._outcomes.put(error)

    def next_plan(self) -> Plan | None:
        """None once it has played to its end."""
        return self._plans.get()

    def land(self, threads: Sequence[ThreadPoolExecutor]) -> None:
        """Give it the outcome of its step, if it has one; all ranks must say the same."""
        if not self.flight:
            return
        landed = [
            thread.submit(_resolve, launched) for thread, launched in zip(threads, self.flight, strict=True)
        ]
        outcomes = [it.result() for it in landed]
        for other in outcomes[1:]:
            assert other.sampled_ids == outcomes[0].sampled_ids
            assert other.errors == outcomes[0].errors
        self._outcomes.put(outcomes[0])


def _take_turns(
    players: Sequence[_Player[Result]], engines: Sequence[Engine], threads: Sequence[ThreadPoolExecutor]
) -> None:
    turns, step = deque(players), 0
    while turns:
        player = turns.popleft()
        player.land(threads)
        plan = player.next_plan()
        if plan is None:
            continue
        step += 1
        plan = replace(plan, epoch=1, step=step)
        player.flight = [
            thread.submit(engine.launch, plan) for thread, engine in zip(threads, engines, strict=True)
        ]
        turns.append(player)


def _resolve(launched: Future[Launched]) -> Outcome:
    return launched.result().resolve()
