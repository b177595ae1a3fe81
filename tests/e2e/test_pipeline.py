"""Stages of layers in the whole system: the streams of shards without stages, also when a rank of a stage dies."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import Load, make_body
from e2e.conftest import Launch
from e2e.faults import MAX_CONCURRENT
from e2e.hosts import Host
from e2e.launched import Launched
from e2e.oracle import Oracle, oracle_of_two_shards
from e2e.test_nodes import Cluster
from e2e.test_nodes import hosts as hosts

pytestmark = pytest.mark.timeout(400)

BODIES = [make_body(number, 120, number if number % 2 else None) for number in range(6)]
STAGES = ("--pipeline-parallel-size=2", "--num-shard=2")


@pytest.fixture(scope="module")
def known(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The answers of two shards."""
    one = tmp_path_factory.mktemp("one")
    with oracle_of_two_shards(one, model, MAX_CONCURRENT, BODIES) as oracle:
        yield oracle


def check_with_a_rank_killed(known: Oracle, server: Launched, rank: int) -> Oracle:
    oracle = Oracle(server, MAX_CONCURRENT)
    oracle.know(known)
    oracle.check(Load(server, BODIES).finish())
    check_harmed(oracle, server, faults.kill, rank)
    assert f"shard {rank} ended (signal 9, SIGKILL), restarting" in server.stderr
    return oracle


def check_harmed(oracle: Oracle, server: Launched, harm: Callable[[int], None], rank: int) -> None:
    """A rank is harmed in the middle of the steps in flight, of which each stage has another."""
    with faults.held_load(server, BODIES) as load:
        harm(faults.shard(server, rank))
    faults.wait_until_ready(server)
    oracle.check(load.finish())


def test_stages_of_two_shards_answer_as_two_shards(known: Oracle, model: Path, tmp_path: Path) -> None:
    with Launched(tmp_path, *faults.flags(tmp_path, model), STAGES[0]) as server:
        server.wait_until_serving()
        info = json.loads(server.get("/info")[1])
        assert (info["num_shard"], info["num_stages"]) == (4, 2)
        oracle = check_with_a_rank_killed(known, server, 3)
        check_harmed(oracle, server, faults.stop, 0)


def test_each_of_two_machines_may_be_a_stage(
    known: Oracle, model: Path, hosts: list[Host], tmp_path: Path
) -> None:
    with closing(Cluster(hosts, tmp_path, model, *STAGES)) as cluster:
        check_with_a_rank_killed(known, cluster.server, 0)


def test_more_stages_than_layers_are_refused_in_one_line(model: Path, launch: Launch) -> None:
    code, stderr = launch(f"--model-id={model}", "--pipeline-parallel-size=3").end()
    assert code == 2
    assert "--pipeline-parallel-size 3 is more than the 2 layers of this model" in stderr
