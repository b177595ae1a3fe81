"""A kernel that cannot be compiled or launched fails the requests of its step, on all ranks, and nobody else."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import thread_ranks
from driver import make_engine
from penstock_server.base.errors import ErrorCode
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Plan, Span
from test_out_of_memory import FIRST, LATER, LATER_ALONE, PROMPT, break_in, failed

pytest.importorskip("triton")
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

ERRORS = [
    CompilationError("x = y", None, "y is not defined"),
    OutOfResources(300_000, 232_448, "shared memory"),
    PTXASError("internal"),
    RuntimeError("PassManager::run failed"),
]
DECODE = Plan(1, 2, spans=[Span(0, 3, 1)])
AFTER_DECODE = Plan(1, 3, retired=[0])


def break_sampling(engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next step of this rank that samples does not compile."""
    sample = engine._sample

    def fail(*arguments: Any) -> Any:
        monkeypatch.setattr(engine, "_sample", sample)
        raise error

    monkeypatch.setattr(engine, "_sample", fail)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_one_rank_alone_goes_on(saved_model: Callable[..., Any], error: Exception) -> None:
    engine = make_engine(saved_model("llama").folder)
    fault = break_in(engine, "layers.1.attention", error)
    engine.launch(FIRST).resolve()
    fault.is_due = True
    outcome = engine.launch(PROMPT).resolve()
    assert failed(outcome) == [(1, ErrorCode.KERNEL)]
    assert "cannot be compiled or launched" in outcome.errors[0].message
    assert engine.launch(LATER).resolve().sampled_slots == [0, 2]


def test_another_error_still_ends_the_shard(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model("llama").folder)
    fault = break_in(engine, "layers.1.attention", RuntimeError("an illegal memory access was encountered"))
    fault.is_due = True
    with pytest.raises(RuntimeError, match="illegal memory access"):
        engine.launch(FIRST)


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
@pytest.mark.parametrize("place", ["layers.0.attention", "layers.1.feed_forward"])
def test_ranks_agree_on_a_pass_that_failed(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, place: str, chosen: list[int]
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        faults = [break_in(rank, place, ERRORS[0]) for rank in ranks]
        execute(FIRST)
        for number in chosen:
            faults[number].is_due = True
        assert failed(execute(PROMPT)) == [(1, ErrorCode.KERNEL)]
        found = execute(LATER)
        assert found.sampled_slots == [0, 2]
        assert not found.errors


@pytest.mark.parametrize("chosen", [[0], [1], [0, 1]])
def test_ranks_agree_on_sampling_that_failed(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, chosen: list[int]
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks, ExitStack() as stack:
        patches = [stack.enter_context(pytest.MonkeyPatch.context()) for _ in chosen]
        execute = thread_ranks.execute_on_all(ranks)
        execute(FIRST)
        for number, patch in zip(chosen, patches, strict=True):
            break_sampling(ranks[number], patch, ERRORS[0])
        assert failed(execute(PROMPT)) == [(1, ErrorCode.KERNEL)]
        found = execute(LATER)
        assert found.sampled_slots == [0, 2]
        assert not found.errors


def test_a_decode_that_no_rank_can_compile_fails_on_all(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        faults = [break_in(rank, "layers.1.attention", ERRORS[0]) for rank in ranks]
        execute(FIRST)
        for fault in faults:
            fault.is_due = True
        assert failed(execute(DECODE)) == [(0, ErrorCode.KERNEL)]
        assert not execute(AFTER_DECODE).errors
        assert execute(LATER_ALONE).sampled_slots == [2]


def test_a_reason_of_one_rank_is_that_of_all(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        faults = [break_in(ranks[0], "layers.0.attention"), break_in(ranks[1], "embedding", ERRORS[0])]
        execute(FIRST)
        for fault in faults:
            fault.is_due = True
        assert failed(execute(PROMPT)) == [(1, ErrorCode.KERNEL)]
