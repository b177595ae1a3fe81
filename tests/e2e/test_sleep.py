"""Sleep and wake of a whole server: streams wait and go on with their own tokens, whatever is killed meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.clients import COMPLETE, Load, make_body
from e2e.launched import Launched, wait_until
from e2e.oracle import Oracle
from e2e.test_adapters import make_adapter

pytestmark = pytest.mark.timeout(300)

LONG = 200
BODIES = [make_body(number, LONG, number if number % 2 else None) for number in range(6)]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *faults.flags(tmp, model), "--allow-model-changes") as launched:
        yield launched.wait_until_serving()


def status(server: Launched) -> str:
    return str(json.loads(server.get("/stats")[1])["status"])


def sleep(server: Launched, level: int = 1) -> None:
    assert server.post(f"/sleep?level={level}", {}) == (200, {"is_sleeping": True, "sleep_level": level})
    assert status(server) == "asleep"
    assert server.get("/health") == (200, b"asleep")


def wake_up(server: Launched) -> None:
    assert server.post("/wake_up", {}) == (200, {"is_sleeping": False, "sleep_level": 0})
    assert status(server) == "ready"


@pytest.mark.parametrize("level", [1, 2])
def test_streams_wait_while_the_model_sleeps_and_a_request_wakes_it(
    server: Launched, oracle: Oracle, level: int
) -> None:
    with faults.held_load(server, BODIES) as load:
        sleep(server, level)
        told = load.num_tokens
    sleep(server, level)
    assert load.num_tokens == told
    assert load.is_running()
    answered = Load(server, [BODIES[0]]).finish()
    assert status(server) == "ready"
    oracle.check(load.finish() + answered)


def test_a_rank_that_is_killed_in_its_sleep_comes_back_asleep(server: Launched, oracle: Oracle) -> None:
    with faults.held_load(server, BODIES) as load:
        sleep(server)
    before = [faults.shard(server, 0), faults.shard(server, 1)]
    faults.kill(before[1])
    wait_until(lambda: all(map(faults.is_gone, before)), 60)
    wait_until(lambda: status(server) == "asleep", 60)
    assert set(before).isdisjoint([faults.shard(server, 0), faults.shard(server, 1)])
    assert json.loads(server.get("/is_sleeping")[1])["is_sleeping"]
    wake_up(server)
    oracle.check(load.finish())


def test_a_router_that_is_killed_leaves_the_shards_asleep(server: Launched, oracle: Oracle) -> None:
    sleep(server, 2)
    shards = [faults.shard(server, 0), faults.shard(server, 1)]
    killed = faults.router(server)
    faults.kill(killed)
    wait_until(lambda: faults.is_gone(killed), 60)
    faults.wait_until_ready(server)
    assert json.loads(server.get("/is_sleeping")[1]) == {"is_sleeping": True, "sleep_level": 2}
    assert shards == [faults.shard(server, 0), faults.shard(server, 1)]
    assert b"tgi_sleep_level 2" in server.get("/metrics")[1]
    records = Load(server, BODIES).finish()
    assert [record.end for record in records] == [COMPLETE] * len(BODIES)
    assert all(map(oracle.is_right, records))


def test_a_rank_that_is_killed_while_it_wakes_up_is_no_loss(server: Launched, oracle: Oracle) -> None:
    sleep(server, 2)
    faults.hold_file(server.tmp).touch()
    try:
        load = Load(server, BODIES)
        wait_until(lambda: status(server) == "changing", 60)
        faults.kill(faults.shard(server, 0))
    finally:
        faults.hold_file(server.tmp).unlink()
    oracle.check(load.finish())


REPLIES: dict[str, dict[str, Any]] = {
    "n": {"messages": [{"role": "user", "content": "two"}], "n": 2, "seed": 3, "max_tokens": 20},
    "grammar": {
        "messages": [{"role": "user", "content": "json"}],
        "max_tokens": 40,
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "adapter": {
        "model": "tuned",
        "messages": [{"role": "user", "content": "tuned"}],
        "temperature": 0,
        "max_tokens": 20,
    },
    "predicted": {
        "messages": [{"role": "user", "content": "again and again and again and again"}],
        "temperature": 0,
        "max_tokens": 30,
    },
}


def texts(server: Launched) -> dict[str, list[str]]:
    found = {}
    for name, body in REPLIES.items():
        code, reply = server.post("/v1/chat/completions", body)
        assert code == 200, reply
        found[name] = [choice["message"]["content"] for choice in reply["choices"]]
    return found


def test_every_feature_gives_the_same_texts_afterwards(model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "adapters" / "tuned", 1)
    flags = (
        f"--model-id={model}",
        "--num-replicas=2",
        "--dtype=float32",
        "--quantize=int8",
        "--speculation=ngram",
        f"--lora-root={adapter.parent}",
        "--allow-runtime-lora-updating",
        "--allow-model-changes",
        "--wake-on-request=false",
    )
    run = tmp_path / "run"
    run.mkdir()
    with Launched(run, *flags) as server:
        server.wait_until_serving()
        load = {"lora_name": "tuned", "lora_path": "tuned"}
        assert server.post("/v1/load_lora_adapter", load)[0] == 200
        expected = texts(server)
        for level in (1, 2):
            assert server.post(f"/sleep?level={level}", {})[0] == 200
            assert server.get("/health")[0] == 503
            code, refused = server.post("/v1/chat/completions", REPLIES["n"])
            assert (code, "POST /wake_up does" in refused["error"]["message"]) == (503, True)
            assert server.post("/v1/chat/completions", REPLIES["adapter"])[0] == 503
            wake_up(server)
            assert texts(server) == expected
