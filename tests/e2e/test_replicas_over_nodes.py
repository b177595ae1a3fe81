"""Replicas over several machines: the tokens of one machine, and what becomes of one replica harms no other."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import COMPLETE, Load, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.hosts import Host
from e2e.launched import Launched, arguments, wait_until
from e2e.oracle import SLACK, Oracle, oracle_of_two_shards
from e2e.test_nodes import PORT, Cluster
from e2e.test_nodes import hosts as hosts
from e2e.test_roles import Counts

pytestmark = pytest.mark.timeout(400)

BODIES = [make_body(number, 200, number if number % 2 else None) for number in range(8)]


@pytest.fixture(scope="module")
def known(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The answers of the same model in two shards of one machine."""
    with oracle_of_two_shards(tmp_path_factory.mktemp("one"), model, MAX_CONCURRENT, BODIES) as known:
        yield known


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas of two nodes each; those of a replica are on one machine."""
    cluster = Cluster(hosts, tmp_path_factory.mktemp("cluster"), model, "--num-replicas=2", num_nodes=4)
    wait_until(lambda: faults.ready(cluster.server) == [True, True], faults.RESTART_S * SLACK)
    yield cluster
    cluster.close()


@pytest.fixture
def oracle(known: Oracle, cluster: Cluster) -> Oracle:
    known.server = cluster.server
    wait_until(lambda: faults.ready(cluster.server) == [True, True], faults.RESTART_S * SLACK)
    known.begin()
    return known


def _shards(cluster: Cluster) -> list[int]:
    """The processes of all nodes."""
    return [faults.shard(node, number % 2) for number, node in enumerate(cluster.nodes)]


def test_replicas_of_several_nodes_give_the_tokens_of_one_machine(cluster: Cluster, oracle: Oracle) -> None:
    with faults.held_load(cluster.server, BODIES) as load:
        assert min(replica["running"] for replica in faults.replicas(cluster.server)) > 0, "both have some"
    oracle.check(load.finish())
    listening = {port for _, port in cluster.hosts[3].listening()}
    assert {PORT + 3, PORT + 4} <= listening, "a port for each shard of all replicas"


def test_streams_go_on_with_the_other_replica_when_a_machine_is_killed(
    cluster: Cluster, oracle: Oracle
) -> None:
    before, stay = faults.restarts(cluster.server), _shards(cluster)[:2]
    with faults.held_load(cluster.server, BODIES) as load:
        cluster.hosts[3].kill()
        wait_until(lambda: faults.ready(cluster.server) == [True, False], faults.RESTART_S * SLACK)
        assert faults.is_ready(cluster.server)
        running = [replica["running"] + replica["waiting"] for replica in faults.replicas(cluster.server)]
        assert running == [len(BODIES), 0], "all streams are with the one that is left"
    oracle.check(load.finish())
    said = cluster.server.stderr
    assert "Waiting until all nodes of replica 1 are there" in said
    for node in (2, 3):
        cluster.launch_again(node)
    wait_until(lambda: faults.ready(cluster.server) == [True, True], faults.RESTART_S * SLACK)
    assert faults.restarts(cluster.server) == before + 1
    assert _shards(cluster)[:2] == stay, "the other replica was left alone"


def test_a_node_that_ends_takes_its_replica_along_and_no_other(cluster: Cluster, oracle: Oracle) -> None:
    lost, stay = _shards(cluster)[:2], _shards(cluster)[2:]
    with faults.held_load(cluster.server, BODIES) as load:
        cluster.nodes[1].signal(signal.SIGTERM)
        assert cluster.nodes[1].end()[0] == 0
        wait_until(lambda: faults.ready(cluster.server) == [False, True], faults.RESTART_S * SLACK)
        wait_until(lambda: all(map(faults.is_gone, lost)), faults.RESTART_S * SLACK)
    oracle.check(load.finish())
    cluster.launch_again(1)
    wait_until(lambda: faults.ready(cluster.server) == [True, True], faults.RESTART_S * SLACK)
    assert _shards(cluster)[2:] == stay


def test_a_node_with_another_number_of_replicas_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    flags = [flag for flag in cluster.flags(3) if not flag.startswith("--num-replicas")]
    with Launched(tmp_path, *flags, "--num-replicas=4", under=cluster.hosts[3].under) as other:
        why = "its --num-replicas is 4, and that of node 0 is 2"
        wait_until(lambda: why in other.stderr, 60 * SLACK)


def test_prompts_are_computed_on_one_machine_and_replies_on_another(
    hosts: list[Host], known: Oracle, model: Path, tmp_path: Path
) -> None:
    apart = ("--num-replicas=2", "--num-shard=2", "--role=prefill,decode")
    with closing(Cluster(hosts, tmp_path, model, *apart, port=PORT + 100)) as cluster:
        wait_until(lambda: faults.ready(cluster.server) == [True, True], faults.RESTART_S * SLACK)
        records = Load(cluster.server, BODIES).finish()
        assert all(record.ends == [COMPLETE] and known.is_right(record) for record in records)
        counts = Counts.of(cluster.server)
        assert (counts.copied, counts.failed) == (len(BODIES), 0)
        assert len(_parts(cluster, 0, "--blocks-listen=tcp:")) == 2, "blocks are handed out over TCP"


def _parts(cluster: Cluster, node: int, start: str) -> list[str]:
    """Arguments of the processes of a node that begin so."""
    words = [word for pid in cluster.nodes[node].children() for word in arguments(pid)]
    return [word for word in words if word.startswith(start)]
