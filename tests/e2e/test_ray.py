"""One model in a Ray cluster: the tokens of one machine, streams that outlive machines, and nothing is left.

Driver and router run on the machine of the head, the ranks on two of three others.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import COMPLETE, Load, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.hosts import Host, can_be_made, network
from e2e.launched import Launched, arguments, wait_until
from e2e.oracle import SLACK, Oracle, oracle_of_two_shards
from e2e.ray_cluster import RayCluster, site_packages

pytestmark = pytest.mark.timeout(600)

BODIES = [make_body(number, 200, number if number % 2 else None) for number in range(6)]
GONE_S = 10.0 * SLACK
# Ray starts its workers on each machine, and these start a launcher: a busy machine takes minutes.
START_S = 80.0 * SLACK


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    packages = site_packages()
    if packages is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no .venv-ray: `make ray` installs it")
    if not can_be_made():
        pytest.skip("making network namespaces and a bridge is not permitted here")
    with network(4) as hosts:
        made = RayCluster(hosts, packages, sys.executable)
        yield made
        made.end()


def _launch(
    cluster: RayCluster, folder: Path, model: Path, *flags: str, under: Sequence[str] = ()
) -> Launched:
    given = [
        *("--executor=ray", "--nnodes=2", f"--ray-address={cluster.address}"),
        *(f"--hostname={cluster.hosts[0].address}", f"--model-id={model}", "--dtype=float32"),
        *(f"--max-concurrent-requests={MAX_CONCURRENT}", "--max-restarts=1000", "--max-replays=1000"),
        faults.hold_flag(folder),
    ]
    return Launched(folder, *given, *flags, under=[*cluster.hosts[0].under, *cluster.environment, *under])


@pytest.fixture(scope="module")
def server(cluster: RayCluster, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with _launch(cluster, tmp_path_factory.mktemp("ray"), model) as launched:
        yield launched.wait_until_serving(START_S)


@pytest.fixture(scope="module")
def _known(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    """The answers of the same model in two shards of one machine."""
    one = tmp_path_factory.mktemp("one")
    with oracle_of_two_shards(one, model, MAX_CONCURRENT, BODIES) as known:
        yield known


@pytest.fixture
def oracle(_known: Oracle, server: Launched) -> Oracle:
    _known.server = server
    faults.wait_until_ready(server)
    _known.begin()
    return _known


def _ended(launched: Launched) -> tuple[int, str]:
    with launched:
        return launched.end()


def _wait_until_missed(server: Launched) -> None:
    """While streams are held no group gets ready, so this lasts."""
    wait_until(lambda: not faults.is_ready(server), GONE_S)


def _catches(pid: int, number: signal.Signals) -> bool:
    """Whether the signal does not simply end the process."""
    [mask] = re.findall(r"^SigCgt:\s(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(mask, 16) >> (number - 1) & 1)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def test_two_machines_of_a_cluster_give_the_tokens_of_one(
    cluster: RayCluster, server: Launched, oracle: Oracle
) -> None:
    oracle.check(Load(server, BODIES).finish())
    assert sorted(cluster.ranks(host)[0] for host in cluster.hosts if cluster.ranks(host)) == [0, 1]
    assert cluster.ranks(cluster.hosts[0]) == [], "the machine of the command has the router alone"
    assert "node 1 | " in server.stderr, "what nodes write is passed on"


def test_streams_go_on_elsewhere_when_a_raylet_is_killed(
    cluster: RayCluster, server: Launched, oracle: Oracle
) -> None:
    lost = cluster.with_rank(1)
    with faults.held_load(server, BODIES) as load:
        faults.kill(cluster.raylet(lost))
        gone_s = faults.time_until(lambda: cluster.ranks(lost) == [], GONE_S)
        _wait_until_missed(server)
    back_s = faults.wait_until_ready(server)
    oracle.check(load.finish())
    assert cluster.with_rank(1) not in (lost, cluster.with_rank(0)), "it is on the third machine"
    _say(f"raylet killed: its rank is gone {gone_s:.1f} s, back {back_s:.1f} s")
    lost.kill()
    cluster.start_workers([lost])


def test_streams_go_on_elsewhere_when_a_machine_is_killed(
    cluster: RayCluster, server: Launched, oracle: Oracle
) -> None:
    lost = cluster.with_rank(0)
    with faults.held_load(server, BODIES) as load:
        lost.kill()
        _wait_until_missed(server)
    back_s = faults.wait_until_ready(server)
    oracle.check(load.finish())
    assert cluster.with_rank(0) != lost
    _say(f"machine killed: back {back_s:.1f} s")


def test_a_launcher_that_is_killed_is_placed_again(
    cluster: RayCluster, server: Launched, oracle: Oracle
) -> None:
    host = cluster.with_rank(1)
    [launcher] = [pid for pid in host.pids() if arguments(pid)[0].endswith("/launcher")]
    with faults.held_load(server, BODIES) as load:
        faults.kill(launcher)
        _wait_until_missed(server)
    faults.wait_until_ready(server)
    oracle.check(load.finish())
    assert "ended with exit code -9; it is placed again" in server.stderr


def test_a_signal_drains_and_leaves_nothing(cluster: RayCluster, server: Launched, oracle: Oracle) -> None:
    with faults.held_load(server, BODIES) as load:
        server.signal(signal.SIGTERM)
    oracle_records = load.finish()
    code, said = server.end()
    assert code == 0, said
    assert all(oracle.is_right(record) and record.end == "complete" for record in oracle_records)
    wait_until(lambda: cluster.left() == [], GONE_S)


def _machine_of(cluster: RayCluster, server: Launched, node: int) -> Host:
    address = re.findall(rf"Node {node} has joined from (\S+)", server.stderr)[-1]
    [host] = [host for host in cluster.hosts if host.address == address]
    return host


def test_replicas_are_placed_and_lost_apart_and_a_driver_that_is_killed_leaves_nothing(
    cluster: RayCluster, model: Path, tmp_path: Path
) -> None:
    with _launch(cluster, tmp_path, model, "--nnodes=1", "--num-replicas=2") as launched:
        launched.wait_until_serving(START_S)
        wait_until(lambda: faults.ready(launched) == [True, True], START_S)
        lost = _machine_of(cluster, launched, 2)
        with faults.held_load(launched, BODIES) as load:
            lost.kill()
            wait_until(lambda: faults.ready(launched) == [True, False], GONE_S)
            assert faults.is_ready(launched), "the other one serves"
        records = load.finish()
        assert [record.ends for record in records] == [[COMPLETE]] * len(BODIES)
        # The streams that were moved have the tokens that each replica gives for them.
        again = Load(launched, BODIES).finish()
        assert [record.tokens for record in again] == [record.tokens for record in records]
        cluster.start_workers([lost])
        wait_until(lambda: faults.ready(launched) == [True, True], START_S)
        launched.process.kill()
        started = time.monotonic()
        wait_until(lambda: cluster.left() == [], GONE_S)
        _say(f"driver killed: nothing is left after {time.monotonic() - started:.1f} s")


def test_a_cluster_without_room_is_named_with_what_it_has(
    cluster: RayCluster, model: Path, tmp_path: Path
) -> None:
    flags = ("--nnodes=3", "--num-shard=2", "--ray-placement-timeout=1")
    code, said = _ended(_launch(cluster, tmp_path, model, *flags))
    assert code == 1
    assert "error: the Ray cluster had no room within 1 s: 3 node(s) with 2 CPU each" in said
    assert f"{cluster.hosts[0].address} with nothing" in said, (
        "the machine of the head has no room for shards"
    )
    assert cluster.left() == []


def test_a_model_that_is_nowhere_ends_all(cluster: RayCluster, tmp_path: Path) -> None:
    code, said = _ended(_launch(cluster, tmp_path, tmp_path / "nothing"))
    assert code == 1, said
    assert "nothing" in said
    wait_until(lambda: cluster.left() == [], GONE_S)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--executor=ray"], "--executor ray needs Ray, which is not installed: pip install 'penstock[ray]'"),
        (["--executor=ray", "--num-replicas=2", "--nnodes=3"], "--num-replicas 2 and --nnodes 3 do not fit"),
        (["--executor=ray", "--node-rank=1"], "drop --node-rank"),
        (["--executor=ray", "--model=a=b"], "--executor cannot be used with --model"),
        (
            ["--executor=ray", "--replica-secret-file=/dev/null"],
            "--replica-secret-file /dev/null does not hold",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path, flags: list[str], reason: str) -> None:
    code, said = _ended(Launched(tmp_path, *flags))
    assert (code, reason in said) == (2, True), said


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("ray://10.0.0.1:10001", "--ray-address ray://10.0.0.1:10001 is that of a Ray client"),
        ("local", "--ray-address 'local' is not HOST:PORT, the address of a Ray cluster"),
        ("127.0.0.1:65536", "--ray-address '127.0.0.1:65536' is not HOST:PORT, the address of a Ray cluster"),
        ("127.0.0.1:1", "--ray-address 127.0.0.1:1: nothing answers there: [Errno 111] Connection refused"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(
    cluster: RayCluster, tmp_path: Path, model: Path, address: str, reason: str
) -> None:
    code, said = _ended(_launch(cluster, tmp_path, model, f"--ray-address={address}"))
    assert (code, f"error: {reason}" in said) == (2, True), said


def test_a_cluster_with_another_token_is_named(cluster: RayCluster, tmp_path: Path, model: Path) -> None:
    under = ["env", "RAY_AUTH_TOKEN=other"]
    code, said = _ended(_launch(cluster, tmp_path, model, under=under))
    assert code == 2
    assert f"error: --ray-address {cluster.address} cannot be joined" in said
    assert "InvalidAuthToken" in said


def test_a_signal_before_anything_is_placed_ends_the_driver(
    cluster: RayCluster, tmp_path: Path, model: Path
) -> None:
    with _launch(cluster, tmp_path, model, "--num-shard=9") as launched:
        wait_until(lambda: _catches(launched.process.pid, signal.SIGTERM), GONE_S)
        launched.signal(signal.SIGTERM)
        code, said = launched.end()
    assert code == 0, said
