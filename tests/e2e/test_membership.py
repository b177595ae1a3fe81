"""Replicas that come and go over the admin socket while streams run, and what the socket refuses."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.admin_socket import AdminSocket
from e2e.clients import COMPLETE, make_body
from e2e.conftest import Launch
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK, Oracle

pytestmark = pytest.mark.timeout(300)

BODIES = [make_body(number, 160, number if number % 2 else None) for number in range(4)]


class Admin(AdminSocket):
    """Calls about replicas."""

    def states(self) -> list[tuple[int, str]]:
        replicas = self.call("GET", "/replicas")[1]["replicas"]
        return [(replica["replica"], replica["state"]) for replica in replicas]

    def add(self, path: Path) -> tuple[int, Any]:
        return self.call("POST", "/replicas", {"address": f"unix:{path}"})


@contextmanager
def _shard(tmp: Path, model: Path, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shard that nobody supervises, whose streams are held as those of the launcher's are."""
    flags = (f"--model-path={model}", f"--uds-path={tmp / name}", "--device=cpu", *flags)
    command = [sys.executable, "-P", "-m", "penstock_server", *flags, faults.hold_flag(tmp)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_until_added(admin: Admin, path: Path) -> dict[str, Any]:
    """The shard may still be loading."""
    replies: list[tuple[int, Any]] = []

    def is_answered() -> bool:
        replies.append(admin.add(path))
        return replies[-1][0] != 502

    wait_until(is_answered, faults.RESTART_S * SLACK)
    assert replies[-1][0] == 201, replies[-1]
    added: dict[str, Any] = replies[-1][1]
    return added


def _check(records: list[Any], oracle: Oracle) -> None:
    assert all(record.ends == [COMPLETE] and oracle.is_right(record) for record in records)


def _served_by_whom(admin: Admin) -> list[int]:
    return [replica["running"] for replica in admin.call("GET", "/replicas")[1]["replicas"]]


def test_shards_of_a_removed_replica_end_and_are_not_started_again(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    admin = Admin(tmp_path / "admin.sock")
    flags = (f"--model-id={model}", "--dtype=float32", "--num-replicas=2", f"--admin-socket={admin.path}")
    server = launch(*flags, "--max-restarts=10").wait_until_serving()
    wait_until(lambda: admin.states() == [(0, "ready"), (1, "ready")], faults.RESTART_S * SLACK)
    shard = faults.shard_of(server, 0)
    assert admin.call("DELETE", "/replicas/0?limit_s=0")[0] == 200
    wait_until(lambda: faults.is_gone(shard), faults.RESTART_S * SLACK)
    wait_until(lambda: "Ended the shards of replica 0, which was removed" in server.stderr, 10 * SLACK)
    status, reply = admin.call("DELETE", "/replicas/1")
    assert status == 409, reply
    faults.kill(faults.router(server))
    faults.wait_until_ready(server)
    assert admin.states() == [(1, "ready")]
    assert faults.shards_of(server, 0) == []
    assert len(faults.shards_of(server, 1)) == 1
    assert server.post("/generate", {"inputs": "on", "parameters": {"max_new_tokens": 2}})[0] == 200


def _look_at_the_socket(server: Launched, admin: Admin) -> None:
    assert stat.S_IMODE(admin.path.stat().st_mode) == 0o600
    assert server.get("/replicas")[0] == 404, "it is no route for clients"
    assert server.post("/replicas", {"address": "unix:/nowhere"})[0] == 404
    assert admin.states() == [(0, "ready")]
    assert admin.call("DELETE", "/replicas/0")[0] == 409, "the last one"
    status, reply = admin.add(Path("/nowhere.sock"))
    assert status == 502
    assert "/nowhere.sock" in reply["error"]


def test_streams_outlive_replicas_that_are_added_drained_and_removed(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    admin = Admin(tmp_path / "admin.sock")
    limits = (f"--max-concurrent-requests={MAX_CONCURRENT}", "--max-restarts=100")
    flags = (f"--model-id={model}", "--dtype=float32", *limits, faults.hold_flag(tmp_path))
    with ExitStack() as stack:
        first = stack.enter_context(_shard(tmp_path, model, "first.sock", "--dtype=float32"))
        stack.enter_context(_shard(tmp_path, model, "second.sock", "--dtype=float32"))
        stack.enter_context(_shard(tmp_path, model, "other.sock", "--dtype=bfloat16"))
        server = launch(*flags, f"--admin-socket={admin.path}").wait_until_serving()
        # One that still loads does not get ready while streams are held.
        others = [tmp_path / f"{name}.sock" for name in ("first", "second", "other")]
        wait_until(lambda: all(other.exists() for other in others), faults.RESTART_S * SLACK)
        _look_at_the_socket(server, admin)
        oracle = Oracle(server, MAX_CONCURRENT)
        oracle.learn(BODIES)
        assert _wait_until_added(admin, tmp_path / "first.sock")["replica"] == 1
        (tmp_path / "alias.sock").symlink_to("first.sock")
        status, reply = admin.add(tmp_path / "alias.sock")
        assert (status, "already" in reply["error"]) == (409, True), reply
        with faults.held_load(server, BODIES) as load:
            assert min(_served_by_whom(admin)) > 0
            assert _wait_until_added(admin, tmp_path / "second.sock")["replica"] == 2
            assert admin.call("POST", "/replicas/0/drain?limit_s=0")[0] == 200
            status, removed = admin.call("DELETE", "/replicas/1?limit_s=0")
            assert (status, removed["address"]) == (200, f"unix:{tmp_path / 'first.sock'}")
            first.kill()
            wait_until(lambda: _served_by_whom(admin) == [0, len(BODIES)], faults.RESTART_S * SLACK)
        _check(load.finish(), oracle)
        assert admin.states() == [(0, "drained"), (2, "ready")]
        status, reply = admin.add(tmp_path / "other.sock")
        assert status == 409
        assert 'dtype is "bfloat16", and "float32" elsewhere' in reply["error"]
        faults.kill(faults.router(server))
        faults.wait_until_ready(server)
        wait_until(lambda: admin.states() == [(0, "drained"), (2, "ready")], faults.RESTART_S * SLACK)
        assert admin.call("POST", "/replicas/0/resume")[0] == 200
        with faults.held_load(server, BODIES) as load:
            assert min(_served_by_whom(admin)) > 0
        _check(load.finish(), oracle)
        server.process.terminate()
        server.end()
    assert not admin.path.exists(), "it goes with the server"
