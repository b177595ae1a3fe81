"""When the ranks' communicator is made and destroyed: NCCL's takes memory of the GPU, and captured graphs hold it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from driver import engine_config
from penstock_server.base.config import GroupConfig
from penstock_server.engine.decode_graphs import DecodeGraphs
from penstock_server.engine.engine import Engine
from penstock_server.files.model_folder import open_folder
from penstock_server.load import load_engine
from penstock_server.load.sizes import choose_limits
from penstock_server.network import distributed


class Dist:
    """The part of torch.distributed that a `Group` uses, for a rank whose fellow brings what it brings itself."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def all_reduce(self, x: torch.Tensor) -> None:
        self.events.append("sum")

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor) -> None:
        for part in parts:
            part.copy_(x)

    @property
    def distributed_c10d(self) -> "Dist":
        return self

    def _set_pg_timeout(self, timeout: timedelta) -> None:
        self.events.append(f"timeout {timeout.total_seconds():g}")

    def destroy_process_group(self) -> None:
        self.events.append("left")


class Graph:
    """A captured graph."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def reset(self) -> None:
        self.events.append("graph destroyed")


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Dist:
    dist = Dist()
    monkeypatch.setattr(distributed, "_join", lambda *_: dist)

    def planned(*arguments: Any) -> Any:
        dist.events.append("memory planned")
        return choose_limits(*arguments)

    monkeypatch.setattr(load_engine, "choose_limits", planned)
    return dist


@pytest.fixture
def engine(saved_model: Callable[..., Any], dist: Dist) -> Engine:
    folder = saved_model().folder
    config = replace(engine_config(folder), group=GroupConfig(0, 2, folder, timeout_s=7))
    return load_engine.load_engine(config, open_folder(folder))


def test_the_communicator_is_there_before_memory_is_planned_and_stays(engine: Engine, dist: Dist) -> None:
    planned = dist.events.index("memory planned")
    assert dist.events[:planned] == ["sum"]
    # It is the only one: from here on the same waits for less long.
    assert "timeout 7" in dist.events[planned:]


def test_graphs_are_destroyed_before_the_communicator(engine: Engine, dist: Dist) -> None:
    assert engine.graphs is None, "several ranks on a CPU record none"
    engine.graphs = DecodeGraphs(engine.model, engine.cache, engine.slots, [1])
    engine.graphs._captured = [Graph(dist.events)]  # type: ignore[list-item]
    del dist.events[:]
    engine.close()
    assert dist.events == ["graph destroyed", "left"]
