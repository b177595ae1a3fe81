"""Two replicas behind one router: the tokens of one, conversations that return, streams that outlive their shards."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Issued
from e2e import faults
from e2e.clients import COMPLETE, Load, make_body
from e2e.conftest import Launch
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK, Oracle
from e2e.test_adapters import make_adapter

pytestmark = pytest.mark.timeout(300)

NUM_STREAMS = 8
LONG = 200
BODIES = [make_body(number, LONG, number if number % 2 else None) for number in range(NUM_STREAMS)]


def _adapted(number: int) -> dict[str, Any]:
    body = make_body(100 + number, LONG)
    body["parameters"]["adapter_id"] = "late"
    return body


ADAPTED = [_adapted(number) for number in range(4)]


def _flags(tmp: Path, model: Path, *more: str) -> list[str]:
    limits = (f"--max-concurrent-requests={MAX_CONCURRENT}", "--max-restarts=10000", "--max-replays=1000")
    adapters = ("--max-loras=2", "--allow-runtime-lora-updating", f"--lora-root={tmp}")
    return [f"--model-id={model}", "--dtype=float32", *limits, *adapters, faults.hold_flag(tmp), *more]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *_flags(tmp, model, "--num-replicas=2")) as launched:
        launched.wait_until_serving()
        wait_until(lambda: all(faults.ready(launched)), faults.RESTART_S * SLACK)
        yield launched


@pytest.fixture(scope="module")
def one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A server of the same model without replicas."""
    tmp = tmp_path_factory.mktemp("one")
    with Launched(tmp, *_flags(tmp, model)) as launched:
        yield launched.wait_until_serving()


@pytest.fixture
def oracle(server: Launched, one: Launched) -> Oracle:
    """Knows what the server without replicas answers, and looks at the one with two."""
    known = Oracle(one, MAX_CONCURRENT)
    known.learn(BODIES)
    known.server = server
    known.begin()
    return known


def test_a_mixture_is_divided_and_gets_the_tokens_of_one_replica(server: Launched, oracle: Oracle) -> None:
    assert json.loads(server.get("/info")[1])["num_replicas"] == 2
    with faults.held_load(server, BODIES) as load:
        running = [replica["running"] for replica in faults.replicas(server)]
        # How long a prompt is under way with a replica, which counts, depends on the machine.
        assert sum(running) == NUM_STREAMS
        assert min(running) >= NUM_STREAMS // 4
    oracle.check(load.finish())


def test_streams_of_a_killed_replica_go_on_with_the_other(server: Launched, oracle: Oracle) -> None:
    before, killed = faults.restarts(server), faults.shard_of(server, 0)
    with faults.held_load(server, BODIES) as load:
        faults.kill(killed)
        wait_until(lambda: faults.ready(server) == [False, True], faults.RESTART_S * SLACK)
        # While streams are held, no replica that starts gets ready: the other one serves alone.
        assert faults.is_ready(server)
        status, reply = server.post("/generate", {"inputs": "meanwhile", "parameters": {"max_new_tokens": 2}})
        assert status == 200, reply
        running = [replica["running"] + replica["waiting"] for replica in faults.replicas(server)]
        assert running == [0, NUM_STREAMS], "all streams are with the other one"
    records = load.finish()
    wait_until(lambda: all(faults.ready(server)), faults.RESTART_S * SLACK)
    # It counted one more request, which is none of these streams'.
    [meanwhile] = Load(server, [BODIES[0]]).finish()
    assert meanwhile.end == COMPLETE
    assert all(record.ends == [COMPLETE] and oracle.is_right(record) for record in [*records, meanwhile])
    assert faults.restarts(server) == before + 1
    assert "replica 0 shard 0 ended (signal 9, SIGKILL), restarting" in server.stderr


def test_a_new_router_serves_with_both_replicas(server: Launched) -> None:
    faults.kill(faults.router(server))
    faults.wait_until_ready(server)
    wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)


def test_an_adapter_that_is_added_reaches_both_replicas_and_one_that_restarts(
    server: Launched, one: Launched
) -> None:
    for each in (server, one):
        folder = str(make_adapter(each.tmp / "late", 3))
        with each.request(
            "POST", "/v1/load_lora_adapter", {"lora_name": "late", "lora_path": folder}
        ) as reply:
            assert reply.status == 200, reply.read()
    oracle = Oracle(one, MAX_CONCURRENT)
    oracle.learn(ADAPTED)
    with faults.held_load(server, ADAPTED) as load:
        assert [replica["running"] for replica in faults.replicas(server)] == [2, 2]
        faults.kill(faults.shard_of(server, 1))
        wait_until(lambda: faults.ready(server) == [True, False], faults.RESTART_S * SLACK)
    assert all(record.end == COMPLETE and oracle.is_right(record) for record in load.finish())
    wait_until(lambda: all(faults.ready(server)), faults.RESTART_S * SLACK)
    with faults.held_load(server, ADAPTED) as load:
        assert min(replica["running"] for replica in faults.replicas(server)) > 0, (
            "also the one that restarted"
        )
    assert all(record.end == COMPLETE and oracle.is_right(record) for record in load.finish())


def _hits_of_conversations(server: Launched) -> float:
    """Prompt tokens found in the cache when conversations take turns."""

    def hits() -> float:
        lines = server.get("/metrics")[1].decode().splitlines()
        return sum(
            float(line.split()[-1]) for line in lines if line.startswith("tgi_prefix_cache_hit_tokens ")
        )

    before = hits()
    for turn in range(1, 5):
        for number in range(6):
            text = f"{number} is what we talk about. " + "And what comes after that? " * turn
            body = {"inputs": text, "parameters": {"max_new_tokens": 4, "ignore_eos": True}}
            status, reply = server.post("/generate", body)
            assert status == 200, reply
    return hits() - before


def test_conversations_find_as_much_in_the_cache_as_with_one_replica(server: Launched, one: Launched) -> None:
    with_one = _hits_of_conversations(one)
    assert with_one > 0
    assert _hits_of_conversations(server) >= with_one


def test_a_replica_that_somebody_else_starts_joins_and_is_done_without(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    socket = tmp_path / "theirs.sock"
    flags = [f"--model-path={model}", f"--uds-path={socket}", "--device=cpu", "--dtype=float32"]
    command = [sys.executable, "-P", "-m", "penstock_server", *flags]
    theirs = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        server = launch(f"--model-id={model}", "--dtype=float32", f"--replica=unix:{socket}")
        server.wait_until_serving()
        wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)
        load = Load(server, BODIES)
        load.wait_for_each(1)
        theirs.kill()
        assert {record.end for record in load.finish()} == {COMPLETE}
        wait_until(lambda: faults.ready(server) == [True, False], faults.RESTART_S * SLACK)
        assert faults.is_ready(server)
        assert "restarting" not in server.stderr, "it is not the launcher's"
    finally:
        theirs.kill()
        theirs.wait()


class Remote:
    """A shard of somebody else on TCP, with its secret in a file, and perhaps with flags of certificates."""

    def __init__(self, tmp: Path, model: Path, secret: str, *tls: str) -> None:
        self.secret_file = tmp / "secret"
        self.secret_file.write_text(secret)
        self._log = (tmp / "shard.log").open("w+")
        self._command = [
            *(sys.executable, "-P", "-m", "penstock_server", f"--model-path={model}", "--device=cpu"),
            *("--dtype=float32", f"--uds-path={tmp / 'theirs.sock'}", f"--secret-file={self.secret_file}"),
            *tls,
        ]
        self.address = "127.0.0.1:0"
        self.start()
        wait_until(self._find_address, faults.RESTART_S * SLACK)

    def start(self) -> None:
        command = [*self._command, f"--listen=tcp:{self.address}"]
        self.process = subprocess.Popen(command, stderr=self._log)

    def _find_address(self) -> bool:
        assert self.process.poll() is None
        found = re.search(r"also listening on tcp, port (\d+)", Path(self._log.name).read_text())
        self.address = f"127.0.0.1:{found[1]}" if found else self.address
        return found is not None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


@pytest.fixture
def remote(tmp_path: Path, model: Path) -> Iterator[Remote]:
    remote = Remote(tmp_path, model, "a-secret-of-this-test")
    yield remote
    remote.end()


def _with_remote(remote: Remote, model: Path, secret: Path) -> list[str]:
    return [
        *(f"--model-id={model}", "--dtype=float32", "--max-replays=1000"),
        *(f"--replica=tcp:{remote.address}", f"--replica-secret-file={secret}"),
    ]


def test_a_replica_on_tcp_is_killed_and_stopped_and_comes_back(
    launch: Launch, model: Path, one: Launched, remote: Remote
) -> None:
    server = launch(*_with_remote(remote, model, remote.secret_file)).wait_until_serving()
    oracle = Oracle(one, MAX_CONCURRENT)
    oracle.learn(BODIES)
    wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        load = Load(server, BODIES)
        load.wait_for_each(1)
        remote.process.send_signal(number)
        wait_until(lambda: faults.ready(server) == [True, False], faults.RESTART_S * SLACK)
        assert all(record.end == COMPLETE and oracle.is_right(record) for record in load.finish())
        assert faults.is_ready(server)
        if number == signal.SIGKILL:
            remote.process.wait()
            remote.start()
        else:
            remote.process.send_signal(signal.SIGCONT)
        wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)
    assert "restarting" not in server.stderr, "it is not the launcher's"


def test_a_replica_that_wants_another_secret_is_left_out_and_named(
    launch: Launch, model: Path, tmp_path: Path, remote: Remote
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-secret-of-this-test")
    server = launch(*_with_remote(remote, model, wrong)).wait_until_serving()
    wait_until(lambda: "wants another secret" in server.stderr, faults.RESTART_S * SLACK)
    assert faults.ready(server) == [True, False]
    assert {record.end for record in Load(server, BODIES).finish()} == {COMPLETE}
    assert server.stderr.count("wants another secret") == 1, "it is told once"
    assert "secret-of-this-test" not in server.stderr


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Issued, Issued]:
    """A certificate of an authority, and one of another with the same name."""
    return Authority(tmp_path / "ours").issue(), Authority(tmp_path / "theirs").issue()


@pytest.fixture
def encrypted(tmp_path: Path, model: Path, authorities: tuple[Issued, Issued]) -> Iterator[Remote]:
    (tmp_path / "remote").mkdir()
    remote = Remote(tmp_path / "remote", model, "a-secret-of-this-test", *authorities[0].flags())
    yield remote
    remote.end()


def test_a_replica_with_certificates_serves_who_shows_one(
    launch: Launch, model: Path, one: Launched, encrypted: Remote, authorities: tuple[Issued, Issued]
) -> None:
    tls = authorities[0].flags("--replica-")
    server = launch(*_with_remote(encrypted, model, encrypted.secret_file), *tls).wait_until_serving()
    oracle = Oracle(one, MAX_CONCURRENT)
    oracle.learn(BODIES)
    wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)
    records = Load(server, BODIES).finish()
    assert all(record.end == COMPLETE and oracle.is_right(record) for record in records)
    assert all(replica["kv_blocks_cached"] for replica in faults.replicas(server)), "both computed some"


@pytest.mark.parametrize("who", ["without a certificate", "with one of another authority"])
def test_a_replica_with_certificates_is_left_out_by_who_shows_none_of_its_authority(
    launch: Launch, model: Path, encrypted: Remote, authorities: tuple[Issued, Issued], who: str
) -> None:
    tls = authorities[1].flags("--replica-") if who.endswith("authority") else []
    flags = [*_with_remote(encrypted, model, encrypted.secret_file), "--log-level=debug"]
    server = launch(*flags, *tls).wait_until_serving()
    wait_until(lambda: "the shards are not back yet" in server.stderr, faults.RESTART_S * SLACK)
    assert ("invalid peer certificate" in server.stderr) == bool(tls)
    assert faults.ready(server) == [True, False]
    assert {record.end for record in Load(server, BODIES).finish()} == {COMPLETE}


def test_an_address_or_a_secret_that_is_none_is_refused_by_name(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short"
    short.write_text("short")
    for flag, expected, said in (
        ("--replica=tcp:nowhere", 2, "`nowhere` is no HOST:PORT"),
        (f"--replica-secret-file={short}", 2, "one word of 16 to 1024 ASCII characters"),
        (f"--replica-tls-cert={short}", 2, "--replica-tls-key"),
    ):
        code, stderr = launch(f"--model-id={model}", flag).end()
        assert code == expected
        assert said in stderr
