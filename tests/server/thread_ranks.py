"""A group of ranks in one process: a thread per rank. They add through shared memory as processes do, and are
spared the start of these.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from driver import Execute, engine_config, opened_both
from penstock_server.base.config import GroupConfig, ServerConfig
from penstock_server.engine.engine import Engine
from penstock_server.engine.plan import Plan
from penstock_server.load.load_engine import load_engine
from penstock_server.network import distributed

_TIMEOUT_S = 60.0


@contextmanager
def engines(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Iterator[list[Engine]]:
    """The engines of all ranks. The options `expert_parallel` and `num_stages` are those of the group."""
    of_group = {name: options.pop(name) for name in ("expert_parallel", "num_stages") if name in options}
    # Where one does not start, the others are not to wait for it as long as processes would.
    monkeypatch.setattr(distributed, "LOAD_TIMEOUT_S", _TIMEOUT_S)
    with ThreadPoolExecutor(size) as pool, TemporaryDirectory() as meeting:

        def load(rank: int) -> Engine:
            config = engine_config(folder, **options)
            config = with_group(config, rank, size, Path(meeting), **of_group)
            return load_engine(config, *opened_both(config))

        ranks = list(pool.map(load, range(size)))
        yield ranks
        for rank in ranks:
            rank.close()


def with_group(config: ServerConfig, rank: int, size: int, meeting: Path, **of_group: Any) -> ServerConfig:
    """The settings of a rank."""
    group = GroupConfig(rank, size, meeting, _TIMEOUT_S, **of_group)
    return replace(config, group=group)


def execute_on_all(ranks: list[Engine]) -> Execute:
    """Runs a plan on every rank at a time, and compares what they say."""
    pool = ThreadPoolExecutor(len(ranks))

    def execute(plan: Plan) -> Any:
        first, *others = pool.map(lambda engine: engine.launch(plan).resolve(), ranks)
        for other in others:
            assert other.sampled_ids == first.sampled_ids
            assert other.sampled_logprobs == first.sampled_logprobs
            assert other.errors == first.errors
        return first

    return execute
