"""Several models in one server: each gives the tokens that it gives alone, and what happens to one harms no other."""

import json
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.admin_socket import AdminSocket
from e2e.clients import COMPLETE, Load, Record, Traffic, make_body
from e2e.conftest import Launch
from e2e.launched import Launched, arguments, wait_until
from e2e.models import make_model
from e2e.oracle import SLACK

pytestmark = pytest.mark.timeout(300)

LONG = 160
FLAGS = ("--dtype=float32",)


def _body(model: str, number: int, max_new_tokens: int = LONG) -> dict[str, Any]:
    return {**make_body(number, max_new_tokens), "model": model}


def _tokens(records: list[Record]) -> dict[str, list[int]]:
    assert [record.end for record in records] == [COMPLETE] * len(records), records
    return {record.canary: record.tokens for record in records}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("other"), hidden_act="gelu")


@pytest.fixture(scope="module")
def two(model: Path, other: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Two models, with room for a third, and with streams that can be held."""
    tmp = tmp_path_factory.mktemp("run")
    flags = (f"--model=one={model}", f"--model=org/two={other},max_batch_size=8", "--max-models=3")
    socket = f"--admin-socket={tmp / 'admin'}"
    with Launched(tmp, *FLAGS, *flags, socket, faults.hold_flag(tmp)) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def admin(two: Launched) -> AdminSocket:
    return AdminSocket(two.tmp / "admin")


@pytest.fixture(scope="module")
def alone(
    model: Path, other: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[int]]]:
    """The tokens of each model where it is served alone."""
    bodies = [make_body(number, LONG) for number in range(4)]
    replies = {}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(
                Launched(tmp_path_factory.mktemp("alone"), *FLAGS, f"--model-id={folder}")
            )
            for name, folder in (("one", model), ("org/two", other))
        }
        for name, server in servers.items():
            replies[name] = _tokens(Load(server.wait_until_serving(), bodies).finish())
    return replies


def _states(admin: AdminSocket) -> dict[str, str]:
    return {model["name"]: model["state"] for model in admin.call("GET", "/models")[1]["models"]}


def _shard(server: Launched, model: Path) -> int:
    """The process of the only shard that has this model."""

    def found() -> list[int]:
        words = {"penstock_server", f"--model-path={model}"}
        return [pid for pid in server.children() if words <= set(arguments(pid))]

    wait_until(found, 60)
    [pid] = found()
    return pid


def test_requests_to_both_at_once_give_the_tokens_of_each_alone(
    two: Launched, alone: dict[str, dict[str, list[int]]]
) -> None:
    bodies = [_body(name, number) for number in range(4) for name in ("one", "org/two")]
    records = Load(two, bodies).finish()
    for name in ("one", "org/two"):
        of_model = [record for record in records if record.body["model"] == name]
        assert _tokens(of_model) == alone[name]
    assert alone["one"] != alone["org/two"]
    first = two.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 1}})
    assert first[0] == 200


def test_the_server_says_what_it_serves_and_refuses_another_model(two: Launched) -> None:
    names = [model["id"] for model in json.loads(two.get("/v1/models")[1])["data"]]
    assert names == ["one", "org/two"]
    assert [model["name"] for model in json.loads(two.get("/api/tags")[1])["models"]] == names
    assert json.loads(two.get("/info")[1])["model_id"] == "one"
    assert json.loads(two.get("/info?model=org/two")[1])["model_id"] == "org/two"
    assert json.loads(two.get("/v1/models/org/two")[1])["id"] == "org/two"
    status, error = two.post("/v1/chat/completions", {"model": "three", "messages": []})
    assert (status, error["error"]["code"]) == (404, "model_not_found")
    assert "this server serves `one`, `org/two`" in error["error"]["message"]
    status, error = two.post("/v1/messages", {"model": "three", "messages": [], "max_tokens": 1})
    assert (status, error["error"]["type"]) == (404, "not_found_error")
    for model in names:
        metrics = two.get(f"/metrics?model={model}")[1].decode()
        assert f'vllm:cache_config_info{{model_name="{model}"' in metrics


def test_a_killed_shard_of_one_model_does_not_touch_the_other(
    two: Launched, model: Path, alone: dict[str, dict[str, list[int]]]
) -> None:
    with faults.held_load(two, [_body("one", 0), _body("org/two", 1)]) as load:
        killed = _shard(two, model)
        faults.kill(killed)
        wait_until(lambda: faults.is_gone(killed), 10 * SLACK)
        untouched = load.records[1]
        before = len(untouched.tokens)
        # A held step takes two seconds: it goes on while the other model's shard is away.
        wait_until(lambda: len(untouched.tokens) > before, faults.RESTART_S * SLACK)
        assert two.get("/health?model=org/two")[0] == 200
    records = load.finish()
    # Both go on: a shard that died is started again, and its stream continues.
    assert _tokens([records[0]]) == {records[0].canary: alone["one"][records[0].canary]}
    assert _tokens([records[1]]) == {records[1].canary: alone["org/two"][records[1].canary]}


def test_a_model_is_loaded_and_unloaded_under_load(
    two: Launched, admin: AdminSocket, other: Path, alone: dict[str, dict[str, list[int]]]
) -> None:
    assert stat.S_IMODE(admin.path.stat().st_mode) == 0o600
    with Traffic(
        two, 2, lambda dice: Record(_body(dice.choice(["one", "org/two"]), dice.randrange(4)))
    ) as traffic:
        status, entry = admin.call(
            "POST", "/models", {"name": "three", "model": str(other), "flags": {"max_batch_size": 4}}
        )
        assert (status, entry["state"]) == (201, "ready"), entry
        # Whoever was told that it serves may ask it at once.
        body = _body("three", 0)
        assert _tokens(Load(two, [body]).finish()) == {"canary-000000": alone["org/two"]["canary-000000"]}
        status, error = admin.call("POST", "/models", {"name": "four", "model": str(other)})
        assert (status, "--max-models" in error["error"]) == (409, True)
        with ThreadPoolExecutor(1) as pool, faults.held_load(two, [body]) as load:
            unloading = pool.submit(admin.call, "DELETE", "/models/three")
            wait_until(lambda: _states(admin)["three"] == "unloading", 10 * SLACK)
            # A question that no shard answers: those are held.
            wait_until(lambda: two.get("/info?model=three")[0] == 404, 10 * SLACK)
            assert two.post("/generate", body)[0] == 404
            assert admin.call("DELETE", "/models/three")[0] == 409
            assert not unloading.done(), "its stream still runs"
        assert _tokens(load.finish()) == {"canary-000000": alone["org/two"]["canary-000000"]}
        assert unloading.result(120)[0] == 200
        assert _states(admin) == {"one": "ready", "org/two": "ready"}
    for record in traffic.records:
        assert record.end == COMPLETE, record
        assert record.tokens == alone[record.body["model"]][record.canary]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"name": "one", "model": "/m"}, 409, "`one` is the name of two models"),
        ({"name": "a,b", "model": "/m"}, 400, "is no name of a model"),
        ({"name": "x", "model": ""}, 400, "no folder and no id"),
        ({"name": "x", "model": "/m", "flags": {"port": 1}}, 400, "`port` is a flag of the whole server"),
        ({"name": "x", "model": "/m", "flags": {"no_such": 1}}, 400, "unexpected argument '--no-such'"),
        (
            {"name": "x", "model": "/m", "flags": {"num_shard": "x"}},
            400,
            "invalid value 'x' for '--num-shard",
        ),
        ({"name": "x", "model": "/m", "flags": {"num_shard": [1]}}, 400, "flags.num_shard: [1] is no text"),
        ({"name": "x", "model": "/nowhere"}, 502, "the model `x` could not be loaded: "),
        ({"name": "x"}, 422, "missing field `model`"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_the_reason(
    two: Launched, admin: AdminSocket, body: dict[str, Any], status: int, message: str
) -> None:
    answered, error = admin.call("POST", "/models", body)
    assert (answered, message in error["error"]) == (status, True), error
    assert _states(admin) == {"one": "ready", "org/two": "ready"}
    assert two.get("/health")[0] == 200


def test_unknown_and_last_models_are_not_unloaded(admin: AdminSocket) -> None:
    assert admin.call("DELETE", "/models/none") == (404, {"error": "there is no model `none`"})
    assert admin.call("DELETE", "/models/one?limit_s=-1")[0] == 400


def test_a_signal_lets_the_streams_of_all_models_finish_and_leaves_nothing(
    launch: Launch, model: Path, other: Path, tmp_path: Path
) -> None:
    flags = (f"--model=one={model}", f"--model=two={other}", faults.hold_flag(tmp_path))
    launched = launch(*FLAGS, *flags).wait_until_serving()
    with faults.held_load(launched, [_body("one", 0), _body("two", 1)]) as load:
        launched.signal(signal.SIGTERM)
        wait_until(lambda: launched.get("/health")[0] == 503, 5 * SLACK)
    assert [record.end for record in load.finish()] == [COMPLETE] * 2
    assert launched.end()[0] == 0
    assert launched.children() == []
    assert list(tmp_path.glob("penstock-*")) == []


def test_nothing_outlives_a_killed_launcher_of_several(launch: Launch, model: Path, tmp_path: Path) -> None:
    launched = launch(*FLAGS, f"--model=one={model}", f"--model=two={model}").wait_until_serving()
    # For each model a launcher, a router and a shard, and the proxy.
    assert len(launched.children()) == 7
    launched.signal(signal.SIGKILL)
    wait_until(lambda: not launched.children() and not list(tmp_path.glob("penstock-*")), 10 * SLACK)


def test_the_proxy_and_the_launcher_of_a_model_are_started_again(
    launch: Launch, model: Path, other: Path
) -> None:
    launched = launch(*FLAGS, f"--model=one={model}", f"--model=two={other}").wait_until_serving()

    def process(argument: str) -> int:
        [pid] = [pid for pid in launched.children() if any(it.startswith(argument) for it in arguments(pid))]
        return pid

    def answers(name: str) -> bool:
        try:
            return launched.post("/generate", _body(name, 0, 2))[0] == 200
        except OSError:
            return False

    faults.kill(process("--models-file="))
    wait_until(lambda: answers("one") and answers("two"), faults.RESTART_S * SLACK)
    with_server = [pid for pid in launched.children() if "--supervised" in arguments(pid)]
    faults.kill(with_server[0])
    wait_until(lambda: len(Load(launched, [_body("one", 0, 2)]).finish()) == 1, 60)
    wait_until(lambda: answers("one") and answers("two"), faults.RESTART_S * SLACK)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model=/m"], "has no name"),
        (["--model=a=/m", "--model=a=/n"], "`a` is the name of two models"),
        (["--model=a=/m,port=1"], "--model a: `port` is a flag of the whole server"),
        (["--model=a=/m,no_such=1"], "--model a: unexpected argument '--no-such'"),
        (
            ["--model=a=/m", "--grpc-port=1"],
            "--grpc-port cannot be used with --model: the gRPC API serves one",
        ),
        (["--model=a=/m", "--model-id=/n"], "cannot be used with"),
        (
            ["--model=a=/m", "--model=b=/n", "--max-models=1"],
            "--model is given 2 times, but --max-models is 1",
        ),
        (["--model=a=/nowhere", "--model=b=/nowhere"], "/nowhere"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(launch: Launch, flags: list[str], message: str) -> None:
    code, stderr = launch(*flags).end()
    assert code in (1, 2), stderr
    assert message in stderr
