"""Streams outlive crashes: whatever dies, hangs or errs, every request ends once, with its own tokens."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import BROKEN, COMPLETE, ERROR, Load, make_body
from e2e.conftest import Launch
from e2e.faults import CRASH_CHAR, KERNEL_CHAR, SLOW_CHAR, SLOW_S, WRONG_ANSWERS
from e2e.launched import Launched
from e2e.oracle import SLACK, Oracle

pytestmark = pytest.mark.timeout(300)

NUM_STREAMS = 8
LONG = 200
BODIES = [make_body(number, LONG, number if number % 2 else None) for number in range(NUM_STREAMS)]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *faults.flags(tmp, model)) as launched:
        yield launched.wait_until_serving()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@pytest.mark.parametrize("rank", [0, 1])
def test_streams_go_on_when_a_rank_is_killed(server: Launched, oracle: Oracle, rank: int) -> None:
    before, ranks = faults.restarts(server), [faults.shard(server, 0), faults.shard(server, 1)]
    with faults.held_load(server, BODIES) as load:
        faults.kill(ranks[rank])
    unready_s = faults.time_until(lambda: not faults.is_ready(server), 0.3 * SLACK)
    assert json.loads(server.get("/stats")[1])["status"] == "restarting"
    gone_s = faults.time_until(lambda: all(map(faults.is_gone, ranks)), 1.0 * SLACK)
    back_s = faults.wait_until_ready(server)
    oracle.check(load.finish())
    assert faults.restarts(server) == before + 1
    assert f"shard {rank} ended (signal 9, SIGKILL), restarting" in server.stderr
    _say(f"kill -9: unready {unready_s:.2f} s, old ranks gone {gone_s:.2f} s, back {back_s:.1f} s")


def test_a_stopped_rank_is_noticed_and_replaced(server: Launched, oracle: Oracle) -> None:
    stopped = faults.shard(server, 1)
    with faults.held_load(server, BODIES) as load:
        faults.stop(stopped)
    unready_s = faults.time_until(lambda: not faults.is_ready(server), 3.0 * SLACK)
    faults.time_until(lambda: faults.is_gone(stopped), 1.0 * SLACK)
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)
    faults.wait_until_ready(server)
    oracle.check(load.finish())
    _say(f"SIGSTOP: unready {unready_s:.2f} s")


def test_a_rank_that_is_stopped_while_it_starts_again_is_replaced(server: Launched, oracle: Oracle) -> None:
    first = faults.shard(server, 0)
    # While streams are held, no shard that starts gets ready: this start does not end before it is stopped.
    with faults.held_load(server, BODIES) as load:
        faults.kill(first)
        faults.time_until(lambda: faults.is_gone(first), 1.0 * SLACK)
        stopped = faults.shard(server, 0)
        faults.stop(stopped)
    noticed_s = faults.time_until(lambda: faults.is_gone(stopped), 3.0 * SLACK)
    faults.wait_until_ready(server)
    oracle.check(load.finish())
    _say(f"SIGSTOP while it starts: gone {noticed_s:.2f} s")


def test_a_killed_router_is_back_without_loading_the_model(server: Launched, oracle: Oracle) -> None:
    ranks, address = [faults.shard(server, 0), faults.shard(server, 1)], server.address
    with faults.held_load(server, BODIES) as load:
        faults.kill(faults.router(server))
    back_s = faults.time_until(lambda: faults.is_ready(server), 2.0 * SLACK)
    records = load.finish()
    assert {record.end for record in records} == {BROKEN}
    oracle.check(records, may_break=True)
    oracle.check(Load(server, BODIES).finish())
    assert [faults.shard(server, 0), faults.shard(server, 1)] == ranks
    assert server.address == address
    _say(f"router killed: back {back_s:.2f} s")


def test_a_router_that_starts_while_a_rank_hangs_is_not_ready_before_a_step_is_answered(
    server: Launched, oracle: Oracle
) -> None:
    ranks = [faults.shard(server, 0), faults.shard(server, 1)]
    with faults.held_load(server, BODIES) as load:
        faults.order(server, "hang", 0)
    faults.time_until(lambda: not list(server.tmp.glob("order-*")), 3.0 * SLACK)
    faults.kill(faults.router(server))
    oracle.check(load.finish(), may_break=True)
    faults.wait_until_ready(server)
    assert all(map(faults.is_gone, ranks))


def test_a_request_that_crashes_the_shards_fails_alone(server: Launched, oracle: Oracle) -> None:
    before = faults.restarts(server)
    body = {"inputs": f"poison {CRASH_CHAR}", "parameters": {"max_new_tokens": 5}}
    with faults.held_load(server, BODIES) as load:
        poisoned = Load(server, [body])
        faults.time_until(lambda: faults.num_requests(server) == NUM_STREAMS + 1, 5.0 * SLACK)
    [poison] = poisoned.finish()
    assert poison.ends == [ERROR]
    assert poison.error == {
        "error": "Request failed during generation: the model shards crashed twice while they computed this request",
        "error_type": "generation",
    }
    records = load.finish()
    assert {record.end for record in records} == {COMPLETE}
    assert faults.restarts(server) == before + 2
    poison.tokens, poison.body = [], BODIES[0]
    oracle.check([*records, poison], expected_errors=["generation"])


def test_a_request_whose_kernel_does_not_compile_fails_and_nothing_restarts(
    server: Launched, oracle: Oracle
) -> None:
    before = faults.restarts(server)
    body = {"inputs": f"new {KERNEL_CHAR}", "parameters": {"max_new_tokens": 5}}
    with faults.held_load(server, BODIES[:1]) as load:
        [failed] = Load(server, [body]).finish()
    assert failed.ends == [ERROR]
    assert failed.error
    assert "a kernel that this step needs cannot be compiled or launched" in failed.error["error"]
    records = load.finish()
    assert {record.end for record in records} <= {COMPLETE, ERROR}
    assert [record.end for record in Load(server, BODIES[:2]).finish()] == [COMPLETE, COMPLETE]
    assert faults.restarts(server) == before


@pytest.mark.parametrize(("kind", "rank"), [*((kind, 0) for kind in WRONG_ANSWERS), ("differ", 1)])
def test_no_wrong_token_reaches_a_client(server: Launched, oracle: Oracle, kind: str, rank: int) -> None:
    before = faults.restarts(server)
    with faults.held_load(server, BODIES) as load:
        faults.order(server, kind, rank)
    oracle.check(load.finish())
    assert faults.restarts(server) == before + 1


def test_a_long_step_is_no_reason_to_be_unready(server: Launched, oracle: Oracle) -> None:
    before = faults.restarts(server)
    body = {"inputs": f"slow {SLOW_CHAR}", "parameters": {"max_new_tokens": 2}}
    load = Load(server, [body])
    started = time.monotonic()
    while load.is_running():
        assert faults.is_ready(server)
        time.sleep(0.02)
    assert time.monotonic() - started > SLOW_S
    assert load.records[0].ends == [COMPLETE]
    assert faults.restarts(server) == before


def test_a_step_that_never_ends_is_cut_off(server: Launched, oracle: Oracle) -> None:
    with faults.held_load(server, BODIES) as load:
        faults.order(server, "hang", 1)
    oracle.check(load.finish())
    assert "--step-timeout" in server.stderr or "another rank" in server.stderr


def test_one_restart_too_many_ends_the_server_with_a_reason(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    flags = (f"--model-id={model}", "--max-restarts=0", faults.hold_flag(tmp_path))
    launched = launch(*flags).wait_until_serving()
    with faults.held_load(launched, BODIES[:1]) as load:
        faults.kill(faults.shard(launched, 0))
        [record] = load.finish()
    assert record.end == ERROR
    assert record.error
    assert record.error["error_type"] == "shutting_down"
    code, stderr = launched.end()
    assert code == 4
    assert "shard 0 ended (signal 9, SIGKILL)" in stderr
    assert "The group of shards failed more than 0 times within 600 s (--max-restarts" in stderr
