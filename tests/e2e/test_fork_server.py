"""Shards are forked from a process that has imported what they need: what happens when it dies or cannot be used."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import COMPLETE, make_body
from e2e.conftest import Launch
from e2e.faults import MAX_CONCURRENT
from e2e.launched import START_TIMEOUT_S, Launched, arguments, wait_until
from e2e.oracle import SLACK, Oracle
from fork_client import ForkServer

pytestmark = pytest.mark.timeout(300)

BODIES = [make_body(number, 200, number if number % 2 else None) for number in range(4)]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *faults.flags(tmp, model, MAX_CONCURRENT)) as launched:
        yield launched.wait_until_serving()


def _parent(pid: int) -> int:
    found = re.search(r"^PPid:\s(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def _wait_for_another(server: Launched, former: int) -> int:
    wait_until(lambda: faults.fork_server(server) != former, 60)
    return faults.fork_server(server)


def test_streams_go_on_when_the_fork_server_is_killed(server: Launched, oracle: Oracle) -> None:
    """Its shards, too: they are told to end by their launcher only."""
    shards, former = [faults.shard(server, rank) for rank in range(2)], faults.fork_server(server)
    assert [_parent(shard) for shard in shards] == [former] * 2
    restarts = faults.restarts(server)
    with faults.held_load(server, BODIES) as load:
        faults.kill(former)
        another = _wait_for_another(server, former)
    records = load.finish()
    assert [record.end for record in records] == [COMPLETE] * len(BODIES)
    assert [faults.shard(server, rank) for rank in range(2)] == shards
    assert faults.restarts(server) == restarts
    # One of those without it dies, and all are forked by the other.
    with faults.held_load(server, BODIES) as load:
        faults.kill(shards[0])
        wait_until(lambda: faults.is_gone(shards[1]), 30 * SLACK)
    records += load.finish()
    assert [record.end for record in records] == [COMPLETE] * 2 * len(BODIES)
    oracle.check(records)
    assert [_parent(faults.shard(server, rank)) for rank in range(2)] == [another] * 2
    assert "nobody saw how, because its fork server ended before it" in server.stderr


def test_all_of_them_are_killed_at_once(server: Launched, oracle: Oracle) -> None:
    with faults.held_load(server, BODIES) as load:
        for pid in (faults.fork_server(server), faults.shard(server, 1), faults.shard(server, 0)):
            faults.kill(pid)
    records = load.finish()
    oracle.check(records)


def test_a_fork_server_that_is_stopped_is_replaced(server: Launched, oracle: Oracle) -> None:
    former = faults.fork_server(server)
    with faults.held_load(server, BODIES) as load:
        faults.stop(former)
        faults.kill(faults.shard(server, 0))
        _wait_for_another(server, former)
    oracle.check(load.finish())


def test_the_exit_of_a_shard_is_the_reason_however_late_it_is_told(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    """The router sees it at once, and the fork server tells it when it gets a processor again."""
    flags = (f"--model-id={model}", "--max-restarts=0", faults.hold_flag(tmp_path))
    running = launch(*flags).wait_until_serving()
    with faults.held_load(running, BODIES[:1]) as load:
        faults.stop(faults.fork_server(running))
        faults.kill(faults.shard(running, 0))
        load.finish()
    code, stderr = running.end()
    assert code == 4
    assert "shard 0 ended (" in stderr


def test_nothing_outlives_a_launcher_whose_fork_server_was_killed(launch: Launch, model: Path) -> None:
    running = launch(f"--model-id={model}", "--num-shard=2").wait_until_serving()
    former = faults.fork_server(running)
    faults.kill(former)
    _wait_for_another(running, former)
    running.signal(signal.SIGKILL)
    wait_until(lambda: not running.children(), 5.0 * SLACK)


def test_what_is_stopped_does_not_outlive_its_launcher(launch: Launch, model: Path) -> None:
    running = launch(f"--model-id={model}").wait_until_serving()
    faults.stop(faults.shard(running, 0))
    faults.stop(faults.fork_server(running))
    running.signal(signal.SIGKILL)
    wait_until(lambda: not running.children(), 5.0 * SLACK)


def test_without_one_each_shard_imports_for_itself(launch: Launch, model: Path) -> None:
    running = launch(f"--model-id={model}", "--num-shard=2", "--fork-server=off").wait_until_serving()
    assert [_parent(faults.shard(running, rank)) for rank in range(2)] == [running.process.pid] * 2
    assert len(running.children()) == 3


def test_a_launcher_stops_at_once_while_libraries_are_imported(launch: Launch, model: Path) -> None:
    running = launch(f"--model-id={model}", "--num-shard=2")
    wait_until(lambda: "Loading the model on" in running.stderr, START_TIMEOUT_S)
    fork_server = faults.fork_server(running)
    wait_until(lambda: "libtorch" in Path(f"/proc/{fork_server}/maps").read_text(), START_TIMEOUT_S)
    running.signal(signal.SIGTERM)
    assert running.end()[0] == 0
    assert not running.children()


def test_the_models_of_one_server_share_one(launch: Launch, model: Path) -> None:
    flags = ("--num-shard=1", "--dtype=float32", f"--model=one={model}", f"--model=two={model}")
    running = launch(*flags).wait_until_serving()
    shards = [pid for pid in running.children() if "--rank=0" in arguments(pid)]
    assert len(shards) == 2
    assert {_parent(shard) for shard in shards} == {faults.fork_server(running)}
    # The proxy, for each model a launcher, a router and a shard, and what the shards are forked from.
    assert len(running.children()) == 8
    running.signal(signal.SIGKILL)
    wait_until(lambda: not running.children(), 10.0 * SLACK)


def test_that_of_another_is_used_if_it_makes_the_same_shards(
    launch: Launch, model: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = (f"--model-id={model}", f"--fork-server={fork_server.path}")
    running = launch(*flags).wait_until_serving()
    shard = faults.shard(running, 0)
    assert _parent(shard) == fork_server.process.pid
    assert len(running.children()) == 2
    running.signal(signal.SIGKILL)
    wait_until(lambda: not running.children(), 5.0 * SLACK)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    other = launch(*flags).wait_until_serving()
    assert ": the variable OMP_NUM_THREADS has another value there" in other.stderr
    shard = next(pid for pid in other.children() if "--rank=0" in arguments(pid))
    assert _parent(shard) == faults.fork_server(other)
