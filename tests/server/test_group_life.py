"""When the ranks' communicator is made and destroyed: NCCL's takes memory of the GPU, and captured graphs hold it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driver import engine_config
from lone_dist import LoneDist
from penstock_server.base.config import GroupConfig
from penstock_server.engine.decode_graphs import DecodeGraphs
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
def dist(monkeypatch: pytest.MonkeyPatch) -> LoneDist:
    dist = LoneDist()
    monkeypatch.setattr(distributed, "_join", lambda *_: dist)

    def planned(*arguments: Any) -> Any:
        dist.events.append("memory planned")
        return choose_limits(*arguments)

    monkeypatch.setattr(load_engine, "choose_limits", planned)
    return dist


@pytest.fixture
def engine(saved_model: Callable[..., Any], dist: LoneDist) -> Engine:
    folder = saved_model().folder
    config = replace(engine_config(folder), group=GroupConfig(0, 2, folder, timeout_s=7))
    return load_engine.load_engine(config, open_folder(folder))


def test_the_communicator_is_there_before_memory_is_planned_and_stays(engine: Engine, dist: LoneDist) -> None:
    planned = dist.events.index("memory planned")
    assert dist.events[:planned] == ["sum"]
    # It is the only one: from here on the same waits for less long.
    assert "timeout 7" in dist.events[planned:]


def test_graphs_are_destroyed_before_the_communicator(engine: Engine, dist: LoneDist) -> None:
    assert engine.graphs is None, "several ranks on a CPU record none"
    engine.graphs = DecodeGraphs(engine.model, engine.cache, engine.slots, [1])
    engine.graphs._captured = [Graph(dist.events)]  # type: ignore[list-item]
    del dist.events[:]
    engine.close()
    assert dist.events == ["graph destroyed", "left"]
