"""One model over two machines: the tokens of one, and streams that outlive a machine killed, stopped or cut off."""

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import Load, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.hosts import Host, can_be_made, network
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK, Oracle, two_shards_here

pytestmark = pytest.mark.timeout(400)

NUM_STREAMS = 6
LONG = 200
BODIES = [make_body(number, LONG, number if number % 2 else None) for number in range(NUM_STREAMS)]
PORT = 29500
# A rank lets go of its device when its node has not heard of node 0 for three seconds.
LET_GO_S = 4.0 * SLACK


class Cluster:
    """Machines and the launchers on them: one on each, or as many on each."""

    def __init__(
        self, hosts: list[Host], folder: Path, model: Path, *more: str, num_nodes: int = 2, port: int = PORT
    ) -> None:
        self.hosts = [hosts[node * len(hosts) // num_nodes] for node in range(num_nodes)]
        self._folder = folder
        self._port = port
        self._secret = folder / "secret"
        self._secret.write_text("a-secret-of-this-test\n")
        self._model = model
        self._more = more
        self._num_launched = 0
        self.nodes = [self._launch(node) for node in range(num_nodes)]
        self.server.wait_until_serving()

    @property
    def server(self) -> Launched:
        """The one with the router."""
        return self.nodes[0]

    def flags(self, node: int, secret: Path | None = None) -> list[str]:
        place = [
            f"--node-rank={node}",
            f"--master-addr={self.hosts[0].address}",
            f"--master-port={self._port}",
        ]
        return [
            *(f"--nnodes={len(self.hosts)}", *place, f"--replica-secret-file={secret or self._secret}"),
            *(f"--hostname={self.hosts[node].address}", f"--model-id={self._model}", "--dtype=float32"),
            *(f"--max-concurrent-requests={MAX_CONCURRENT}", "--max-restarts=1000", "--max-replays=1000"),
            # Where it is looked for at the first launcher of node 0.
            faults.hold_flag(self._folder / "1"),
            *self._more,
        ]

    def _launch(self, node: int) -> Launched:
        self._num_launched += 1
        tmp = self._folder / str(self._num_launched)
        tmp.mkdir()
        return Launched(tmp, *self.flags(node), under=self.hosts[node].under)

    def launch_again(self, node: int) -> None:
        """After the machine, or its launcher, has ended."""
        self.nodes[node].__exit__(None, None, None)
        self.nodes[node] = self._launch(node)

    def shard(self, node: int) -> int:
        return faults.shard(self.nodes[node], node)

    def close(self) -> None:
        for node in self.nodes:
            node.__exit__(None, None, None)


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if not can_be_made():
        pytest.skip("making network namespaces and a bridge is not permitted here")
    with network(2) as made:
        yield made


@pytest.fixture(scope="module")
def cluster(hosts: list[Host], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(hosts, tmp_path_factory.mktemp("cluster"), model)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A server of the same model in two shards of one machine."""
    with two_shards_here(tmp_path_factory.mktemp("one"), model, MAX_CONCURRENT) as launched:
        yield launched


@pytest.fixture(scope="module")
def _known(alone: Launched) -> Oracle:
    known = Oracle(alone, MAX_CONCURRENT)
    known.learn(BODIES)
    return known


@pytest.fixture
def oracle(_known: Oracle, cluster: Cluster) -> Oracle:
    """Knows what one machine answers, and looks at the two."""
    _known.server = cluster.server
    faults.wait_until_ready(cluster.server)
    _known.begin()
    return _known


def _lost(cluster: Cluster) -> int:
    """How often node 0 has lost the other one."""
    return cluster.server.stderr.count("node 1 is lost")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def test_two_machines_give_the_tokens_of_one(cluster: Cluster, oracle: Oracle) -> None:
    oracle.check(Load(cluster.server, BODIES).finish())
    assert "Node 1 has joined from " + cluster.hosts[1].address in cluster.server.stderr


def test_nothing_listens_but_on_the_address_in_the_network_of_the_nodes(cluster: Cluster) -> None:
    assert cluster.server.address
    for host, known in zip(cluster.hosts, ({PORT, cluster.server.address[1]}, {PORT + 2}), strict=True):
        listening = host.listening()
        assert {address for address, _ in listening} == {host.address}, listening
        # One more is that of gloo, on a port that the system has chosen.
        assert known < {port for _, port in listening}
        assert len(listening) == len(known) + 1


@pytest.mark.parametrize("node", [0, 1])
def test_a_rank_that_is_killed_on_either_machine_takes_the_group_along(
    cluster: Cluster, oracle: Oracle, node: int
) -> None:
    before, ranks = faults.restarts(cluster.server), [cluster.shard(0), cluster.shard(1)]
    with faults.held_load(cluster.server, BODIES) as load:
        faults.kill(ranks[node])
        faults.time_until(lambda: all(map(faults.is_gone, ranks)), LET_GO_S)
    back_s = faults.wait_until_ready(cluster.server)
    oracle.check(load.finish())
    assert faults.restarts(cluster.server) == before + 1
    assert f"shard {node} ended (signal 9, SIGKILL), restarting" in cluster.server.stderr
    assert [node.process.poll() for node in cluster.nodes] == [None, None], "the launchers stay"
    _say(f"rank of node {node} killed: back {back_s:.1f} s")


def test_streams_go_on_when_a_machine_that_was_killed_is_back(cluster: Cluster, oracle: Oracle) -> None:
    mine = cluster.shard(0)
    with faults.held_load(cluster.server, BODIES) as load:
        cluster.hosts[1].kill()
        gone_s = faults.time_until(lambda: faults.is_gone(mine), LET_GO_S)
        assert not faults.is_ready(cluster.server)
        cluster.launch_again(1)
    back_s = faults.wait_until_ready(cluster.server)
    oracle.check(load.finish())
    _say(f"machine killed: the other lets go {gone_s:.2f} s, back {back_s:.1f} s")


def test_a_machine_that_is_stopped_is_lost_and_joins_again_when_it_goes_on(
    cluster: Cluster, oracle: Oracle
) -> None:
    ranks = [cluster.shard(0), cluster.shard(1)]
    with faults.held_load(cluster.server, BODIES) as load:
        before = _lost(cluster)
        cluster.hosts[1].signal(signal.SIGSTOP)
        gone_s = faults.time_until(lambda: faults.is_gone(ranks[0]), LET_GO_S)
        faults.time_until(lambda: _lost(cluster) > before, LET_GO_S)
        assert not faults.is_gone(ranks[1]), "it is stopped, and nobody there can end it"
        cluster.hosts[1].signal(signal.SIGCONT)
        faults.time_until(lambda: faults.is_gone(ranks[1]), LET_GO_S)
    back_s = faults.wait_until_ready(cluster.server)
    oracle.check(load.finish())
    assert "node 0 is lost" in cluster.nodes[1].stderr
    _say(f"machine stopped: the other lets go {gone_s:.2f} s, back {back_s:.1f} s")


def test_a_machine_that_is_cut_off_lets_go_and_joins_again_when_it_is_reached(
    cluster: Cluster, oracle: Oracle
) -> None:
    ranks = [cluster.shard(0), cluster.shard(1)]
    with faults.held_load(cluster.server, BODIES) as load:
        before = _lost(cluster)
        cluster.hosts[1].cut()
        gone_s = faults.time_until(lambda: all(map(faults.is_gone, ranks)), LET_GO_S)
        faults.time_until(lambda: _lost(cluster) > before, LET_GO_S)
        assert not faults.is_ready(cluster.server)
        cluster.hosts[1].heal()
    back_s = faults.wait_until_ready(cluster.server)
    oracle.check(load.finish())
    assert "node 1 is lost: it said nothing for 3000 ms" in cluster.server.stderr
    _say(f"machine cut off: both let go {gone_s:.2f} s, back {back_s:.1f} s")


def test_a_stranger_is_told_nothing_and_harms_nobody(
    cluster: Cluster, oracle: Oracle, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("another-secret-than-that\n")
    flags = cluster.flags(1, secret)
    with faults.held_load(cluster.server, BODIES) as load:
        with Launched(tmp_path, *flags, under=cluster.hosts[1].under) as stranger:
            wait_until(lambda: "it knows another secret" in stranger.stderr, 60 * SLACK)
        with socket.create_connection((cluster.hosts[0].address, PORT)) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
            answer = b""
            while part := silent.recv(4096):
                answer += part
            assert answer.startswith(b'{"challenge":"')
            assert answer.count(b"\n") == 1
        same = Launched(tmp_path, *cluster.flags(1), under=cluster.hosts[1].under)
        with same:
            wait_until(lambda: "there is a node with --node-rank 1 already" in same.stderr, 60 * SLACK)
    oracle.check(load.finish())


def test_a_node_that_is_told_to_stop_ends_well_and_another_takes_its_place(
    cluster: Cluster, oracle: Oracle
) -> None:
    with faults.held_load(cluster.server, BODIES) as load:
        leaving = cluster.nodes[1]
        leaving.signal(signal.SIGTERM)
        code, _ = leaving.end()
        assert code == 0
        assert leaving.children() == []
        cluster.launch_again(1)
    faults.wait_until_ready(cluster.server)
    oracle.check(load.finish())


def test_when_node_0_is_lost_the_others_let_go_and_serve_it_when_it_is_back(cluster: Cluster) -> None:
    theirs = cluster.shard(1)
    cluster.hosts[0].kill()
    gone_s = faults.time_until(lambda: faults.is_gone(theirs), LET_GO_S)
    assert cluster.nodes[1].process.poll() is None
    cluster.launch_again(0)
    cluster.server.wait_until_serving()
    status, _ = cluster.server.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 3}})
    assert status == 200
    _say(f"node 0 killed: the other lets go {gone_s:.2f} s")


def test_when_node_0_ends_all_end(cluster: Cluster) -> None:
    faults.wait_until_ready(cluster.server)
    started = time.monotonic()
    cluster.server.signal(signal.SIGTERM)
    assert [node.end()[0] for node in cluster.nodes] == [0, 0]
    assert [node.children() for node in cluster.nodes] == [[], []]
    _say(f"all ended after {time.monotonic() - started:.1f} s")
