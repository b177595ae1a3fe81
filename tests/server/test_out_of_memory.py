"""A step that one rank has no memory for fails its requests on all ranks, and nobody else notices."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import thread_ranks
import torch
from driver import make_engine
from penstock_server.base.errors import ErrorCode
from penstock_server.engine.engine import Engine
from penstock_server.engine.outcome import Outcome
from penstock_server.engine.plan import Admit, Plan, Span
from penstock_server.engine.sampling_params import SamplingParams

GREEDY = SamplingParams()
# Slot 0 begins, slot 1 begins while it runs, slot 1 is given back, slot 2 begins; slot 0 decodes where it may.
FIRST = Plan(1, 1, admitted=[Admit(0, [5, 6, 7], 3, [0, 1, 2], GREEDY)], spans=[Span(0, 0, 3)])
PROMPT = Plan(1, 2, admitted=[Admit(1, list(range(9, 19)), 10, [3, 4, 5], GREEDY)], spans=[Span(1, 0, 10)])
LATER = Plan(
    1, 3, retired=[1], admitted=[Admit(2, [8, 9], 2, [3, 4], GREEDY)], spans=[Span(0, 3, 1), Span(2, 0, 2)]
)


class Faulty:
    """Stands for a module's forward; raises an error when told to."""

    def __init__(self, forward: Callable[..., Any], error: Exception) -> None:
        self.forward = forward
        self.error = error
        self.is_due = False

    def __call__(self, *arguments: Any) -> Any:
        if self.is_due:
            self.is_due = False
            raise self.error
        return self.forward(*arguments)


def break_in(engine: Engine, place: str, error: Exception | None = None) -> Faulty:
    """By default it runs out of memory."""
    module = engine.model.get_submodule(place)  # type: ignore[attr-defined]  # a Model that is a module
    module.forward = Faulty(module.forward, error or torch.OutOfMemoryError("injected"))
    fault: Faulty = module.forward
    return fault


def failed(outcome: Outcome) -> list[tuple[int, ErrorCode]]:
    return [(error.slot, error.code) for error in outcome.errors]


@pytest.mark.parametrize("place", ["layers.0.attention", "layers.1.feed_forward", "embedding"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_both_ranks_report_it_and_go_on(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str, place: str
) -> None:
    folder = saved_model(family).folder
    with thread_ranks.engines(folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        fault = break_in(ranks[1], place)
        assert execute(FIRST).sampled_slots == [0]
        fault.is_due = True
        outcome = execute(PROMPT)
        assert failed(outcome) == [(1, ErrorCode.OUT_OF_MEMORY)]
        assert not fault.is_due
        found = execute(LATER)
        assert not found.errors
        for rank in ranks:
            rank.clear()
        unharmed = [execute(plan) for plan in (FIRST, PROMPT, LATER)]
    assert failed(unharmed[1]) == []
    assert (found.sampled_slots, found.sampled_ids) == (unharmed[2].sampled_slots, unharmed[2].sampled_ids)
    assert found.sampled_logprobs == unharmed[2].sampled_logprobs


def test_a_model_of_transformers_can_run_out_too(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_ranks.engines(
        saved_model("llama").folder, 2, monkeypatch, model_impl="transformers"
    ) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        fault = break_in(ranks[0], "model.model.layers.1.mlp")
        execute(FIRST)
        fault.is_due = True
        assert failed(execute(PROMPT)) == [(1, ErrorCode.OUT_OF_MEMORY)]
        assert execute(LATER).sampled_slots == [0, 2]


def test_every_rank_may_be_the_one(saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        faults = [break_in(rank, "layers.1.attention") for rank in ranks]
        execute(FIRST)
        for chosen in ([0], [1], [0, 1]):
            for number in chosen:
                faults[number].is_due = True
            assert failed(execute(PROMPT)) == [(1, ErrorCode.OUT_OF_MEMORY)]
            execute(Plan(1, 3, retired=[1]))
        assert execute(LATER_ALONE).sampled_slots == [2]


LATER_ALONE = Plan(1, 4, admitted=[Admit(2, [8, 9], 2, [3, 4], GREEDY)], spans=[Span(2, 0, 2)])


def test_steps_of_decodes_exchange_nothing(
    saved_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with thread_ranks.engines(saved_model("llama").folder, 2, monkeypatch) as ranks:
        execute = thread_ranks.execute_on_all(ranks)
        execute(FIRST)
        exchanged: list[tuple[int, ...]] = []
        for rank in ranks:
            monkeypatch.setattr(rank.group, "gather_numbers", lambda *numbers: exchanged.append(numbers))
        assert execute(Plan(1, 2, spans=[Span(0, 3, 1)])).sampled_slots == [0]
        assert exchanged == []


def test_one_rank_alone_goes_on(saved_model: Callable[..., Any]) -> None:
    engine = make_engine(saved_model("llama").folder)
    fault = break_in(engine, "layers.1.attention")
    engine.launch(FIRST).resolve()
    fault.is_due = True
    assert failed(engine.launch(PROMPT).resolve()) == [(1, ErrorCode.OUT_OF_MEMORY)]
    assert engine.launch(LATER).resolve().sampled_slots == [0, 2]


_RANK = """
import sys
from dataclasses import replace
from pathlib import Path
from driver import engine_config
from penstock_server.base.config import GroupConfig
from penstock_server.load.load_engine import load_engine
from penstock_server.files.model_folder import open_folder
from penstock_server.network import distributed
from penstock_server.process.leave import leave
from test_out_of_memory import FIRST, LATER, PROMPT, break_in, failed

folder, meeting, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
distributed.is_supported = lambda: False  # as where the ops in C are not built
engine = load_engine(replace(engine_config(folder), group=GroupConfig(rank, 2, meeting)), open_folder(folder))
outcomes = []
for with_fault in (True, False):
    fault = break_in(engine, "layers.1.attention")
    for plan in (FIRST, PROMPT, LATER):
        fault.is_due = with_fault and rank == 1 and plan is PROMPT
        outcomes.append(engine.launch(plan).resolve())
    engine.clear()
assert [code.value for _slot, code in failed(outcomes[1])] == ["out_of_memory"], outcomes[1]
assert (outcomes[2].sampled_ids, outcomes[2].sampled_logprobs) == (
    outcomes[5].sampled_ids, outcomes[5].sampled_logprobs
)
print(outcomes[2].sampled_slots, outcomes[2].sampled_ids)
engine.group.leave()
leave(0)
"""


def test_processes_over_gloo_go_on_together(saved_model: Callable[..., Any], tmp_path: Path) -> None:
    folder = saved_model("llama").folder
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(folder), str(tmp_path), str(rank)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert outputs[0][0].startswith("[0, 2] ")
