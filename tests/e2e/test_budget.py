"""Three models of which two are awake at once: each gives its own tokens, and no stream is touched by the others.

Then models of different sizes, of which as many are awake as have room.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.admin_socket import AdminSocket
from e2e.clients import COMPLETE, Load, Record, Traffic, make_body
from e2e.conftest import Launch
from e2e.launched import Launched, arguments, wait_until
from e2e.models import greedy, make_model
from e2e.oracle import SLACK

pytestmark = pytest.mark.timeout(300)

NAMES = ("a", "b", "c")
LONG, SHORT = 160, 8
MAX_AWAKE = 2
# Tokens of the caches, each of 512 bytes. What a model records of its steps takes up to 140 MB beside them.
CACHES = {"a": 900_000, "b": 900_000, "large": 2_000_000, "tiny": 4_096}
# Two small ones fit, with a tiny one; or a large and a tiny one. No more than two are awake in any case.
MAX_AWAKE_GB = 1.4


@pytest.fixture(scope="module")
def folders(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    b = make_model(tmp_path_factory.mktemp("b"), hidden_act="gelu")
    c = make_model(tmp_path_factory.mktemp("c"), tie_word_embeddings=True)
    return {"a": model, "b": b, "c": c, "large": c, "tiny": c}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Streams of `a` and `b` can be held, each by a file of its own."""
    tmp = tmp_path_factory.mktemp("run")
    holds = {"a": faults.hold_file(tmp), "b": tmp / "hold-b"}
    flags = [
        f"--model={name}={folders[name]}" + (f",fault=hold:{holds[name]}:100" if name in holds else "")
        for name in NAMES
    ]
    budget = (f"--max-awake-models={MAX_AWAKE}", "--min-awake-time=0", "--max-models=4")
    others = ("--dtype=float32", "--allow-model-changes", f"--admin-socket={tmp / 'admin'}")
    with Launched(tmp, *flags, *budget, *others) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def weighed(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """Models that take different amounts of memory."""
    tmp = tmp_path_factory.mktemp("run")
    models = [
        f"--model={name}={folders[name]},max_batch_total_tokens={tokens}" for name, tokens in CACHES.items()
    ]
    budget = (f"--max-awake-gb={MAX_AWAKE_GB}", "--max-awake-models=2", "--min-awake-time=0")
    others = ("--max-models=5", "--dtype=float32", f"--admin-socket={tmp / 'admin'}")
    with Launched(tmp, *models, *budget, *others) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def admin(server: Launched) -> AdminSocket:
    return AdminSocket(server.tmp / "admin")


def _body(model: str, number: int, max_new_tokens: int = SHORT, **parameters: int) -> dict[str, Any]:
    body = make_body(number, max_new_tokens)
    return {**body, "parameters": {**body["parameters"], **parameters}, "model": model}


def _states(admin: AdminSocket) -> dict[str, str]:
    return {model["name"]: model["state"] for model in admin.call("GET", "/models")[1]["models"]}


def _asleep(admin: AdminSocket) -> list[str]:
    """When all are where they go."""
    wait_until(lambda: list(_states(admin).values()).count("ready") == MAX_AWAKE, 10 * SLACK)
    return [name for name, state in _states(admin).items() if state == "asleep"]


def _metric(server: Launched, name: str) -> float:
    text = server.get("/metrics")[1].decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, f"{name} is not in {text}"
    return float(found[1])


def _check(records: list[Record], folders: dict[str, Path]) -> None:
    """Each has the tokens that transformers generates, up to the end that it would have made."""
    for record in records:
        assert record.end == COMPLETE, record
        expected, _ = greedy(
            folders[record.body["model"]],
            record.body["inputs"],
            record.body["parameters"]["max_new_tokens"],
        )
        assert record.tokens[: len(expected)] == expected, record


def _shard(server: Launched, folder: Path) -> int:
    words = {"penstock_server", f"--model-path={folder}"}

    def found() -> list[int]:
        return [pid for pid in server.children() if words <= set(arguments(pid))]

    wait_until(found, 60)
    [pid] = found()
    return pid


@contextmanager
def _held(server: Launched, names: str) -> Iterator[Load]:
    """A stream of each of these models, held in its middle."""
    Load(server, [_body(name, 9) for name in names]).finish()
    other = server.tmp / "hold-b"
    if "b" in names:
        other.touch()
    try:
        with faults.held_load(server, [_body(name, 0, LONG) for name in names]) as load:
            yield load
    finally:
        other.unlink(missing_ok=True)


def test_the_models_beyond_the_budget_sleep_from_the_start_on(server: Launched, admin: AdminSocket) -> None:
    assert _asleep(admin) == ["c"]
    listed = json.loads(server.get("/v1/models")[1])["data"]
    assert {model["id"]: model["sleep_level"] for model in listed} == {"a": 0, "b": 0, "c": 1}
    levels = [json.loads(server.get(f"/info?model={name}")[1])["sleep_level"] for name in NAMES]
    assert levels == [0, 0, 1]
    assert server.get("/health?model=c")[0] == 200
    assert _metric(server, "tgi_awake_models") == MAX_AWAKE


def test_models_that_are_used_in_turn_give_their_own_tokens(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    before = {name: _metric(server, f'tgi_model_evictions{{model="{name}"}}') for name in NAMES}
    for number, name in enumerate("cabcab"):
        _check(Load(server, [_body(name, number)]).finish(), folders)
        assert name not in _asleep(admin)
    after = {name: _metric(server, f'tgi_model_evictions{{model="{name}"}}') for name in NAMES}
    assert all(after[name] > before[name] for name in NAMES), (before, after)
    assert _metric(server, "tgi_model_waking_duration_count") > 0


def test_requests_for_a_model_that_sleeps_share_one_wake(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    [name] = _asleep(admin)
    wakes = f'tgi_model_wakes{{model="{name}"}}'
    before = _metric(server, wakes)
    _check(Load(server, [_body(name, number) for number in range(6)]).finish(), folders)
    assert _metric(server, wakes) == before + 1


def test_a_request_that_its_server_refuses_wakes_nothing(server: Launched, admin: AdminSocket) -> None:
    [name] = _asleep(admin)
    assert server.post("/generate", _body(name, 0, max_new_tokens=-1))[0] == 422
    assert _asleep(admin) == [name]


def test_a_stream_is_not_interrupted_and_its_model_stays_awake(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    with _held(server, "a") as load:
        told = load.num_tokens
        for name in "cbc":
            _check(Load(server, [_body(name, 3)]).finish(), folders)
            assert "a" not in _asleep(admin)
        # A held step takes two seconds.
        wait_until(lambda: load.num_tokens > told, 10 * SLACK)
    _check(load.finish(), folders)


def test_a_request_waits_for_a_model_that_is_idle_until_its_deadline(
    server: Launched, folders: dict[str, Path]
) -> None:
    with _held(server, "ab") as load:
        status, error = server.post("/generate", _body("c", 1, queue_timeout_ms=300))
        assert (status, error["error_type"]) == (429, "overloaded"), error
        assert "the limit is 300 ms" in error["error"]
        patient = Load(server, [_body("c", 1), _body("c", 2)])
    _check(load.finish() + patient.finish(), folders)


def test_a_shard_that_dies_in_its_sleep_comes_back_asleep(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    [name] = _asleep(admin)
    killed = _shard(server, folders[name])
    faults.kill(killed)
    wait_until(lambda: faults.is_gone(killed), 10 * SLACK)
    assert _shard(server, folders[name]) != killed
    assert _asleep(admin) == [name]
    _check(Load(server, [_body(each, 4) for each in NAMES]).finish(), folders)


def test_calls_by_hand_keep_to_the_budget(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    [asleep] = _asleep(admin)
    assert server.post(f"/wake_up?model={asleep}", {})[0] == 200
    [other] = _asleep(admin)
    assert other != asleep
    assert server.post(f"/sleep?level=2&model={asleep}", {})[0] == 200
    wait_until(lambda: list(_states(admin).values()).count("asleep") == 2, 10 * SLACK)
    assert _metric(server, "tgi_awake_models") == 1
    _check(Load(server, [_body(name, 5) for name in NAMES]).finish(), folders)


def test_models_come_and_go_under_the_budget_while_all_are_used(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    with Traffic(server, 2, lambda dice: Record(_body(dice.choice(NAMES), dice.randrange(3)))) as traffic:
        status, entry = admin.call("POST", "/models", {"name": "d", "model": str(folders["b"])})
        assert (status, entry["name"]) == (201, "d"), entry
        _check(Load(server, [_body("d", 6)]).finish(), {"d": folders["b"]})
        assert admin.call("DELETE", "/models/d")[0] == 200
    _check(traffic.records, folders)
    assert sorted(_states(admin)) == list(NAMES)
    # The place of `d` may be free: who is needed next takes it.
    _check(Load(server, [_body(name, 8) for name in NAMES]).finish(), folders)


def test_a_proxy_that_is_started_again_finds_the_models_as_they_are(
    server: Launched, admin: AdminSocket, folders: dict[str, Path]
) -> None:
    asleep = _asleep(admin)
    [proxy] = [
        pid for pid in server.children() if any(it.startswith("--models-file=") for it in arguments(pid))
    ]
    faults.kill(proxy)
    wait_until(lambda: faults.is_gone(proxy), 10 * SLACK)
    faults.wait_until_ready(server)
    assert _asleep(admin) == asleep
    _check(Load(server, [_body(name, 7) for name in NAMES]).finish(), folders)


def _awake(admin: AdminSocket) -> list[str]:
    return sorted(name for name, state in _states(admin).items() if state == "ready")


def test_as_many_begin_awake_as_fit_and_all_say_what_they_take(weighed: Launched) -> None:
    admin = AdminSocket(weighed.tmp / "admin")
    wait_until(lambda: _awake(admin) == ["a", "b"], 10 * SLACK)
    infos = {name: json.loads(weighed.get(f"/info?model={name}")[1]) for name in CACHES}
    takes = {name: info["awake_bytes"]["level_1"] for name, info in infos.items()}
    for name, tokens in CACHES.items():
        assert 512 * tokens < takes[name] < 512 * tokens + 150e6, takes
        assert infos[name]["awake_bytes"]["level_2"] > takes[name]
        assert _metric(weighed, f'tgi_model_awake_bytes{{model="{name}"}}') == takes[name]
    assert _metric(weighed, "tgi_awake_budget_bytes") == MAX_AWAKE_GB * 1e9
    assert _metric(weighed, "tgi_awake_bytes") == takes["a"] + takes["b"]


@pytest.mark.parametrize(
    ("needed", "awake"),
    [
        ("large", ["large"]),  # two small ones sleep for it
        ("tiny", ["large", "tiny"]),  # nobody does
        ("a", ["a", "tiny"]),  # only the large one, although the tiny one was used later
        ("b", ["a", "b"]),  # they would fit, but are too many
    ],
)
def test_as_many_models_sleep_as_have_to(
    weighed: Launched, folders: dict[str, Path], needed: str, awake: list[str]
) -> None:
    _check(Load(weighed, [_body(needed, number) for number in range(2)]).finish(), folders)
    assert _awake(AdminSocket(weighed.tmp / "admin")) == awake
    assert (f'needed="{needed}"' in weighed.stderr) == (needed != "tiny"), "the log says for whom they sleep"


def test_models_of_all_sizes_that_are_used_at_once_give_their_own_tokens(
    weighed: Launched, folders: dict[str, Path]
) -> None:
    names = list(CACHES)
    with Traffic(weighed, 3, lambda dice: Record(_body(dice.choice(names), dice.randrange(3)))) as traffic:
        wait_until(lambda: len(traffic.records) > 20, 60 * SLACK)
    _check(traffic.records, folders)
    assert _metric(weighed, "tgi_awake_bytes") <= MAX_AWAKE_GB * 1e9


def test_a_model_that_takes_more_than_the_budget_is_not_loaded(
    weighed: Launched, folders: dict[str, Path]
) -> None:
    admin = AdminSocket(weighed.tmp / "admin")
    flags = {"max_batch_total_tokens": 3_000_000}
    status, refused = admin.call(
        "POST", "/models", {"name": "huge", "model": str(folders["c"]), "flags": flags}
    )
    assert status == 502, refused
    found = re.search(
        r"the model `huge` takes (\d+) bytes .* --max-awake-gb allows (\d+) bytes;", refused["error"]
    )
    assert found, refused
    assert (int(found[1]) > 3_000_000 * 512, int(found[2])) == (True, int(MAX_AWAKE_GB * 1e9))
    assert sorted(_states(admin)) == sorted(CACHES)
    status, loaded = admin.call("POST", "/models", {"name": "d", "model": str(folders["c"])})
    assert status == 201, loaded
    _check(
        Load(weighed, [_body(name, 4) for name in (*CACHES, "d")]).finish(), {**folders, "d": folders["c"]}
    )


def test_a_server_with_a_model_that_takes_more_than_the_budget_does_not_start(
    launch: Launch, folders: dict[str, Path]
) -> None:
    model = f"--model=big={folders['a']},max_batch_total_tokens=1000000"
    code, stderr = launch(model, "--max-awake-gb=0.4", "--dtype=float32").end()
    assert code == 1, stderr
    assert re.search(r"the model `big` takes \d+ bytes .* --max-awake-gb allows 400000000 bytes;", stderr), (
        stderr
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-awake-gb=1"], "--model <NAME=MODEL"),
        (["--model=a=/m", "--max-awake-gb=0"], "`0` is no number of GB"),
        (["--model=a=/m", "--sleep-level=2"], "--max-awake-gb"),
        (["--max-awake-models=1"], "--model <NAME=MODEL"),
        (
            ["--model=a=/m", "--max-awake-models=1", "--wake-on-request=false"],
            "--model a: --wake-on-request false cannot be used with --max-awake-models",
        ),
        (["--model=a=/m,sleep_level=2"], "`sleep-level` is a flag of the whole server"),
        (["--model=a=/m", "--sleep-level=3"], "3 is not in 1..=2"),
        (["--model=a=/m", "--max-awake-models=0"], "0 is not in 1..=64"),
    ],
)
def test_flags_that_cannot_be_are_refused_by_name(launch: Launch, flags: list[str], message: str) -> None:
    code, stderr = launch(*flags).end()
    assert code in (1, 2), stderr
    assert message in stderr
