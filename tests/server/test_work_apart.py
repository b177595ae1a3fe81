"""Long work of grammars: threads of their own, of the lowest priority, which leave the interpreter to the others."""

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from penstock_server.engine import constrained_slot, grammar_threads, low_priority
from penstock_server.engine.constrained_slot import ConstrainedSlot
from penstock_server.engine.grammar_threads import GrammarThreads, Job, Kind
from penstock_server.engine.low_priority import LowPriority
from penstock_server.engine.matcher import Matcher
from penstock_server.engine.matchers import Matchers
from penstock_server.engine.plan import Grammar
from tokenizers import Tokenizer

# Takes longer with every token.
AMBIGUOUS = Grammar("lark", 'start: e\ne: e e e | e e | "x"')


@pytest.fixture(scope="module")
def folder(saved_model: Callable[..., Any]) -> Any:
    return saved_model().folder


needs_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere priorities belong to processes, and nobody names their threads"
)


@needs_linux
def test_a_thread_that_gets_no_processor_is_not_held_by_its_job() -> None:
    """On a busy machine any job may last; its thread keeps its place and its priority."""
    threads, gate = GrammarThreads(num_threads=1), threading.Event()
    waiting = threads.start(Job(lambda _apart: str(gate.wait())), Kind.MASK)
    other = threads.start(Job(lambda _apart: str(os.nice(0))), Kind.MASK)
    time.sleep(3 * grammar_threads._HELD_S)
    threads.set_long_jobs_apart()
    assert not other.done.done(), "another thread has taken the place of the first"
    gate.set()
    assert waiting.done.result(timeout=60) == "True"
    assert other.done.result(timeout=60) == str(os.nice(0))


@needs_linux
def test_only_what_builds_a_grammar_gives_way() -> None:
    threads = GrammarThreads(num_threads=1)
    niceness = {
        kind: int(threads.start(Job(lambda _apart: str(os.nice(0))), kind).done.result(timeout=60))
        for kind in (Kind.MASK, Kind.BUILD, Kind.LONG)
    }
    lower = min(19, os.nice(0) + 10)
    assert niceness == {Kind.MASK: os.nice(0), Kind.BUILD: lower, Kind.LONG: os.nice(0)}


@needs_linux
@pytest.mark.parametrize("may_raise", [True, False])
def test_only_a_thread_whose_share_can_be_given_back_is_without_one(
    may_raise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last thread of a killed process has to get on, and so has whoever may hold the interpreter's lock."""
    usual, set_priority = os.nice(0), os.setpriority

    def set_as_allowed(which: int, thread_id: int, niceness: int) -> None:
        if niceness < os.getpriority(which, thread_id) and not may_raise:
            raise PermissionError("no right to raise priorities")
        set_priority(which, thread_id, niceness)

    monkeypatch.setattr(os, "setpriority", set_as_allowed)
    if may_raise and not _may_raise_priorities():
        pytest.skip("no right to raise priorities")
    before = _threads()
    threads, gate = GrammarThreads(num_threads=1), threading.Event()

    def work(_apart: LowPriority | None) -> str:
        while not gate.is_set():
            pass
        return "done"

    held, long = threads.start(Job(work), Kind.MASK), threads.start(Job(work), Kind.LONG)
    while held.cost_s() <= grammar_threads._HELD_S or long.cost_s() == 0:
        time.sleep(0.001)
    threads.set_long_jobs_apart()
    started = _threads() - before
    shares = [
        (os.sched_getscheduler(thread_id), os.getpriority(os.PRIO_PROCESS, thread_id))
        for thread_id in started
    ]
    # The thread that builds and the one that is held, then the one that works for the long jobs.
    low = os.SCHED_OTHER, min(19, usual + 10)
    assert sorted(shares)[-3:] == [low, low, (os.SCHED_IDLE, usual) if may_raise else low]
    gate.set()
    assert [held.done.result(timeout=60), long.done.result(timeout=60)] == ["done", "done"]


def _may_raise_priorities() -> bool:
    def lower_and_raise() -> None:
        usual = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lower_and_raise).exception() is None


def _threads() -> set[int]:
    return {int(task.name) for task in low_priority._TASKS.iterdir()}


def behind(matcher: Matcher, token_ids: list[int]) -> Matcher:
    """The matcher, when it has taken in these tokens on this thread."""
    for token_id in token_ids:
        matcher.consume(token_id, None)
    return matcher


def replayed(folder: Any, threads: GrammarThreads, num_tokens: int) -> ConstrainedSlot:
    """A slot that is admitted with so many tokens of the grammar that takes longer with every one."""
    [x] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("x").ids
    matchers = Matchers(folder / "tokenizer.json", 301, (2,))
    return ConstrainedSlot(partial(matchers.build, AMBIGUOUS), 10, threads, generated=[x] * num_tokens)


@pytest.fixture
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work apart gets its share of a busy machine, too: with the lowest priority, seconds of it may take minutes."""
    monkeypatch.setattr(low_priority, "_set_lowest", lambda thread_id: None)


@needs_linux
@pytest.mark.usefixtures("usual_priority")
def test_tokens_from_before_are_taken_in_apart_once_one_took_long(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once they held the interpreter's lock for half a minute: not even a signal ended the shard."""
    apart, consume = [], LowPriority.consume

    def counted(low: LowPriority, matcher: Any, second: Any, token_id: int) -> None:
        apart.append(token_id)
        consume(low, matcher, second, token_id)

    monkeypatch.setattr(LowPriority, "consume", counted)
    slot = replayed(folder, GrammarThreads(num_threads=1), 200)
    assert not slot.is_waited_for
    assert slot.job.done.result(timeout=60) == ""
    assert 0 < len(apart) < 200
    assert not slot.is_waited_for
    assert not slot.failure()
    matchers, masks = Matchers(folder / "tokenizer.json", 301, (2,)), torch.zeros(1, 10, dtype=torch.int32)
    behind(matchers.build(AMBIGUOUS), apart[:1] * 200).fill(masks, None)
    assert torch.equal(slot.bits, masks[0])


@pytest.mark.usefixtures("usual_priority")
def test_tokens_from_before_have_the_time_of_all_tokens_together(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constrained_slot, "_MAX_TOTAL_S", 0.05)
    slot = replayed(folder, GrammarThreads(num_threads=1), 1000)
    reason = slot.job.done.result(timeout=60)
    assert reason == slot.failure() == "the grammar takes too long: more than 0.05 s for the tokens so far"


@needs_linux
@pytest.mark.usefixtures("usual_priority")
def test_work_apart_leaves_the_interpreter_to_others(folder: Any) -> None:
    """On the caller's thread llguidance holds the interpreter's lock while it takes a token in. Nobody is asked for the
    lock here, so others run only if it is free. The system may keep them off the processors meanwhile, so there are
    several tokens."""
    [x] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("x").ids
    matchers = Matchers(folder / "tokenizer.json", 301, (2,))
    tokens = [x] * 150
    matcher = behind(matchers.build(AMBIGUOUS), tokens)
    masks = torch.zeros(2, 2, 10, dtype=torch.int32)
    apart, ticks, is_over = LowPriority(), [0], threading.Event()

    def tick() -> None:
        while not is_over.is_set():
            ticks[0] += 1
            time.sleep(0)

    ticking, usual_interval, num_ticks = threading.Thread(target=tick), sys.getswitchinterval(), 0
    ticking.start()
    sys.setswitchinterval(600)
    while len(tokens) < 250 and num_ticks == 0:
        before = ticks[0]
        matcher.consume(x, apart)
        num_ticks = ticks[0] - before
        tokens.append(x)
    sys.setswitchinterval(usual_interval)
    is_over.set()
    ticking.join()
    assert num_ticks > 0, "nothing else ran"
    assert apart.processor_s() > 0
    matcher.fill(masks[0], apart)
    behind(matchers.build(AMBIGUOUS), tokens).fill(masks[1], None)
    assert torch.equal(masks[0, 0], masks[1, 0])
    assert not matcher.error()


def test_long_jobs_are_done_where_no_thread_apart_can_be_had(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(low_priority, "_TASKS", tmp_path / "none")
    job = GrammarThreads(num_threads=1).start(Job(lambda apart: f"with {apart}"), Kind.LONG)
    assert job.done.result(timeout=60) == "with None"
