"""When the ranks' communicator is made and destroyed: NCCL's takes memory of the GPU, and captured graphs hold it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driver import engine_config
from lone_rank import LoneRank
from penstock_server.base.config import GroupConfig
from penstock_server.engine.engine import Engine
from penstock_server.files.model_folder import open_folder
from penstock_server.load import load_engine
from penstock_server.load.sizes import choose_limits
from penstock_server.network import distributed


class Graph:
    """A captured graph."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def reset(self) -> None:
        self.events.append("graph destroyed")


@pytest.fixture
def lone(monkeypatch: pytest.MonkeyPatch) -> LoneRank:
    lone = LoneRank()
    monkeypatch.setattr(distributed, "connect", lambda *_: lone.connections())

    def planned(*arguments: Any) -> Any:
        lone.events.append("memory planned")
        return choose_limits(*arguments)

    monkeypatch.setattr(load_engine, "choose_limits", planned)
    return lone


@pytest.fixture
def engine(saved_model: Callable[..., Any], lone: LoneRank) -> Engine:
    folder = saved_model().folder
    config = replace(engine_config(folder), group=GroupConfig(0, 2, folder, timeout_s=7))
    return load_engine.load_engine(config, open_folder(folder))


def test_the_communicator_is_there_before_memory_is_planned_and_stays(engine: Engine, lone: LoneRank) -> None:
    planned = lone.events.index("memory planned")
    assert lone.events[:planned] == ["sum"]
    # It is the only one. The same waits for less long once all ranks are warm: their first steps may be far apart.
    assert "sum" in lone.events[planned:]
    assert lone.events[-1] == "timeout 7"
    assert lone.events.count("timeout 7") == 1


def test_graphs_are_destroyed_before_the_communicator(engine: Engine, lone: LoneRank) -> None:
    assert engine.graphs is not None
    engine.graphs._pool._graphs = [Graph(lone.events)]  # type: ignore[list-item]
    del lone.events[:]
    engine.close()
    assert lone.events == ["graph destroyed", "left"]
