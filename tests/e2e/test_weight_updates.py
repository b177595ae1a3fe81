"""Weights that are replaced under load: streams go on with the new ones or fail, and nothing stale is read."""

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import faults
from e2e.clients import COMPLETE, ERROR, Load, Record, make_body
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched, arguments, wait_until
from e2e.models import reference
from e2e.oracle import Oracle
from e2e.sockets import listening
from e2e.test_adapters import make_adapter
from e2e.test_sleep import status, texts
from tokenizers import Tokenizer
from updated_weights import changed, cut_off, trained

pytestmark = pytest.mark.timeout(300)

TRAINER = Path(__file__).parents[2] / "examples" / "send_weights.py"
LONG = 150
BODIES = [make_body(number, LONG) for number in range(4)]


@pytest.fixture(scope="module")
def root(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder below which weights are: `a` and `b`, and what is wrong."""
    root = tmp_path_factory.mktemp("root")
    for seed, name in enumerate("ab"):
        trained(model, root / name, seed)
    name = "model.layers.0.mlp.up_proj.weight"
    changed(root / "a", root / "missing", lambda tensors: tensors.pop(name))
    changed(root / "a", root / "shape", lambda tensors: tensors.update({name: torch.zeros(2, 2)}))
    cut_off(root / "a", root / "cut")
    changed(root / "a", root / "nan", lambda tensors: tensors[name].fill_(torch.nan))
    return root


def flags(root: Path) -> list[str]:
    return ["--allow-model-changes", f"--weights-root={root}", "--trainer-host=127.0.0.1"]


@pytest.fixture(scope="module")
def server(model: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    with Launched(tmp, *faults.flags(tmp, model), *flags(root)) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def oracles(server: Launched, root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Oracle]:
    """The answers to each request from a server that was started with the weights."""
    known = {}
    for name in "ab":
        oracle = Oracle(server, MAX_CONCURRENT)
        tmp = tmp_path_factory.mktemp("fresh")
        with Launched(tmp, *faults.flags(tmp, root / name)) as fresh:
            learning = Oracle(fresh.wait_until_serving(), MAX_CONCURRENT)
            learning.learn(BODIES)
        oracle.know(learning)
        known[name] = oracle
    return known


def update(server: Launched, name: str, **more: object) -> dict[str, Any]:
    code, answer = server.post("/update_weights", {"path": name, "version": name, **more})
    assert (code, answer["weights_version"]) == (200, name), answer
    assert json.loads(server.get("/info")[1])["weights_version"] == name
    return dict(answer)


@contextmanager
def updating(server: Launched, name: str, **more: object) -> Iterator[list[tuple[int, Any]]]:
    """While streams are held; they go on behind it, and the answer is in the list."""
    answers: list[tuple[int, Any]] = []
    body = {"path": name, "version": name, **more}
    thread = threading.Thread(target=lambda: answers.append(server.post("/update_weights", body)))
    thread.start()
    yield answers
    thread.join(120)
    assert [code for code, _ in answers] == [200], answers


def chosen(folder: Path, record: Record) -> list[int]:
    """The tokens that the weights would choose in the place of each of its tokens, after those before it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode(record.body["inputs"]).ids
    with torch.no_grad():
        logits = reference(folder)(torch.tensor([prompt + record.tokens])).logits[0]
    best: list[int] = logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    return best


def test_streams_go_on_with_the_new_weights_from_the_tokens_that_they_have(
    server: Launched, root: Path, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    faults.hold_file(server.tmp).touch()
    try:
        load = Load(server, BODIES)
        load.wait_for_each(5)
        with updating(server, "b"):
            wait_until(lambda: status(server) == "changing", 60)
            assert load.ends() == []
            faults.hold_file(server.tmp).unlink()
    finally:
        faults.hold_file(server.tmp).unlink(missing_ok=True)
    for record in load.finish():
        assert (record.ends, len(record.tokens)) == ([COMPLETE], LONG)
        pairs = zip(record.tokens, chosen(root / "b", record), strict=True)
        last_of_a = max(index for index, (token, best) in enumerate(pairs) if token != best)
        assert last_of_a >= 4, "it has tokens of both"
        assert oracles["a"].is_right(Record(record.body, tokens=record.tokens[: last_of_a + 1], ends=[ERROR]))
    oracles["b"].begin()
    oracles["b"].check(Load(server, BODIES).finish())


def test_streams_fail_where_that_is_asked_for(server: Launched, oracles: dict[str, Oracle]) -> None:
    update(server, "a")
    faults.hold_file(server.tmp).touch()
    try:
        load = Load(server, BODIES)
        load.wait_for_each(5)
        with updating(server, "b", mode="abort"):
            wait_until(lambda: not load.is_running(), 60)
            faults.hold_file(server.tmp).unlink()
    finally:
        faults.hold_file(server.tmp).unlink(missing_ok=True)
    for record in load.finish():
        assert record.ends == [ERROR]
        assert record.error is not None
        assert record.error["error_type"] == "generation"
        assert "the weights of the model were replaced" in record.error["error"]
        assert oracles["a"].is_right(record)
    oracles["b"].begin()
    oracles["b"].check(Load(server, BODIES).finish())


def killed_shard(server: Launched) -> None:
    before = [faults.shard(server, 0), faults.shard(server, 1)]
    faults.kill(before[1])
    wait_until(lambda: all(map(faults.is_gone, before)), 60)


def killed_router(server: Launched) -> None:
    killed = faults.router(server)
    faults.kill(killed)
    wait_until(lambda: faults.is_gone(killed), 60)


@pytest.mark.parametrize("kill", [killed_shard, killed_router])
def test_whoever_is_killed_comes_back_with_them(
    server: Launched, oracles: dict[str, Oracle], kill: Callable[[Launched], None]
) -> None:
    update(server, "b")
    kill(server)
    faults.wait_until_ready(server)
    assert json.loads(server.get("/info")[1])["weights_version"] == "b"
    records = Load(server, BODIES).finish()
    assert [record.end for record in records] == [COMPLETE] * len(BODIES)
    assert all(map(oracles["b"].is_right, records))


def test_streams_of_a_killed_shard_go_on_with_them(server: Launched, oracles: dict[str, Oracle]) -> None:
    update(server, "a")
    oracles["a"].begin()
    with faults.held_load(server, BODIES) as load:
        faults.kill(faults.shard(server, 0))
    oracles["a"].check(load.finish())


def test_a_shard_that_is_killed_while_they_are_read_is_no_loss(
    server: Launched, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    oracles["b"].begin()
    # A shard that is about to be ready waits for this file.
    with faults.held(server), updating(server, "b"):
        wait_until(lambda: status(server) == "changing", 60)
        faults.kill(faults.shard(server, 0))
        faults.hold_file(server.tmp).unlink()
        wait_until(lambda: status(server) == "ready", 120)
        faults.hold_file(server.tmp).touch()
    oracles["b"].check(Load(server, BODIES).finish())


def test_what_cannot_be_used_leaves_those_in_use(
    server: Launched, root: Path, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    number = json.loads(server.get("/info")[1])["weights_number"]
    (root / "link").symlink_to(server.tmp)
    for path, code, message in [
        ("missing", 422, "tensor model.layers.0.mlp.up_proj.weight is in no file"),
        ("shape", 422, "has shape [2, 2], and [96, 64] in the weights in use"),
        ("cut", 422, "its folder/model.safetensors: truncated"),
        ("nan", 503, "stays as it was"),
        ("..", 422, "below --weights-root"),
        ("link", 422, "below --weights-root"),
    ]:
        refused, answer = server.post("/update_weights", {"path": path})
        assert (refused, message in answer["error"]) == (code, True), answer
        assert str(root) not in answer["error"]
    assert json.loads(server.get("/info")[1])["weights_number"] == number
    oracles["a"].begin()
    oracles["a"].check(Load(server, BODIES).finish())


def send(server: Launched, folder: Path, code: int = 0) -> str:
    """The output of a trainer with the tensors of this folder, when it has ended."""
    address = "http://{}:{}".format(*server.address or ())
    command = [sys.executable, str(TRAINER), str(folder), f"--server={address}", f"--version={folder.name}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == code, ended.stderr
    return ended.stdout + ended.stderr


# Sends all tensors but the last one, which it has announced.
HALF_A_TRAINER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {examples!r})
from send_weights import Server, tensors_of

class Late:
    def __init__(self, tensor):
        self.dtype, self.shape = tensor.dtype, tensor.shape

    def contiguous(self):
        print("half", flush=True)
        time.sleep(600)

server = Server({address!r})
first, *others, (name, last) = tensors_of(Path({folder!r}))
print(server.send_bucket([first], "half")["missing"], flush=True)
server.send_bucket([*others, (name, Late(last))], "half")
"""


@contextmanager
def half_a_trainer(server: Launched, folder: Path) -> Iterator[subprocess.Popen[str]]:
    address = "http://{}:{}".format(*server.address or ())
    script = HALF_A_TRAINER.format(examples=str(TRAINER.parent), address=address, folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as trainer:
        try:
            assert trainer.stdout is not None
            assert int(trainer.stdout.readline()) > 1
            assert trainer.stdout.readline() == "half\n"
            yield trainer
        finally:
            trainer.kill()


def receivers(server: Launched) -> list[int]:
    """Processes that are ranks of a trainer's group for the shards of this server."""
    shards = [faults.shard(server, rank) for rank in range(2)]
    tasks = [task for shard in shards for task in Path(f"/proc/{shard}/task").iterdir()]
    children = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in children if "penstock_server.network.trainer_group" in arguments(pid)]


def received(root: Path) -> list[Path]:
    return list(root.glob(".received-*"))


def test_weights_of_a_trainer_are_used_as_those_of_a_folder(
    server: Launched, root: Path, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    with faults.held(server), ThreadPoolExecutor() as pool:
        load = Load(server, BODIES)
        load.wait_for_each(5)
        sent = pool.submit(send, server, root / "b")
        wait_until(lambda: status(server) == "changing" or sent.done(), 120)
        assert load.ends() == []
        faults.hold_file(server.tmp).unlink()
        assert "'missing': 0" in sent.result()
        faults.hold_file(server.tmp).touch()
    assert [record.end for record in load.finish()] == [COMPLETE] * len(BODIES)
    assert receivers(server) == []
    oracles["b"].begin()
    oracles["b"].check(Load(server, BODIES).finish())
    # Who is started again has them from where they were received.
    assert len(received(root)) == 1
    killed_shard(server)
    faults.wait_until_ready(server)
    records = Load(server, BODIES).finish()
    assert all(record.ends == [COMPLETE] and oracles["b"].is_right(record) for record in records)
    update(server, "a")
    assert received(root) == [], "nobody uses them any more"


def test_a_trainer_that_is_killed_hurts_nobody(
    server: Launched, root: Path, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    oracles["a"].begin()
    with faults.held_load(server, BODIES) as load, half_a_trainer(server, root / "b") as trainer:
        assert len(received(root)) == 1
        ranks = receivers(server)
        assert len(ranks) == 2
        assert {host for pid in ranks for host, _ in listening(pid)} == {"127.0.0.1"}
        trainer.kill()
        wait_until(lambda: not received(root) and not any(map(arguments, ranks)), 60)
    oracles["a"].check(load.finish())
    assert "the trainer, or another rank of its group, is gone" in server.stderr
    with half_a_trainer(server, root / "b"):
        code, left = server.post("/destroy_weights_update_group", {"group_name": "trainer"})
        assert (code, left["success"]) == (200, True)
        wait_until(lambda: not received(root) and not receivers(server), 60)
    oracles["a"].check(Load(server, BODIES).finish())


def test_what_a_trainer_sends_and_cannot_be_used_leaves_those_in_use(
    server: Launched, root: Path, oracles: dict[str, Oracle]
) -> None:
    update(server, "a")
    for folder, message in [
        ("shape", "has shape [2, 2], and [96, 64] in the weights in use; the group has ended"),
        ("nan", "stays as it was"),
    ]:
        assert message in send(server, root / folder, code=1)
        assert received(root) == []
    assert "'missing': 1" in send(server, root / "missing")
    wait_until(lambda: not received(root), 60)
    assert json.loads(server.get("/info")[1])["weights_version"] == "a"
    oracles["a"].begin()
    oracles["a"].check(Load(server, BODIES).finish())


def test_a_folder_that_is_gone_is_waited_for(
    model: Path, tmp_path: Path, root: Path, oracles: dict[str, Oracle]
) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(root / "a", weights / "latest")
    run = tmp_path / "run"
    run.mkdir()
    with Launched(run, *faults.flags(run, model), *flags(weights)) as server:
        server.wait_until_serving()
        assert server.post("/update_weights", {"path": "latest"})[0] == 200
        (weights / "latest").rename(weights / "away")
        killed_shard(server)
        load = Load(server, BODIES)
        wait_until(lambda: "the shards cannot change" in server.stderr, 60)
        assert load.num_tokens == 0, "nothing is computed with other weights"
        (weights / "away").rename(weights / "latest")
        records = load.finish()
    assert all(record.ends == [COMPLETE] and oracles["a"].is_right(record) for record in records)


def test_every_feature_gives_the_texts_of_a_fresh_start(
    model: Path, root: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    adapter = make_adapter(tmp_path / "adapters" / "tuned", 1)
    more = [
        "--num-replicas=2",
        "--dtype=float32",
        "--quantize=int8",
        "--speculation=ngram",
        f"--lora-root={adapter.parent}",
        "--allow-runtime-lora-updating",
    ]
    load = {"lora_name": "tuned", "lora_path": "tuned"}
    expected = {}
    for folder in (model, root / "a"):
        with Launched(tmp_path_factory.mktemp("fresh"), f"--model-id={folder}", *more) as server:
            server.wait_until_serving()
            assert server.post("/v1/load_lora_adapter", load)[0] == 200
            expected[folder] = texts(server)
    with Launched(tmp_path_factory.mktemp("run"), f"--model-id={model}", *more, *flags(root)) as server:
        server.wait_until_serving()
        assert server.post("/v1/load_lora_adapter", load)[0] == 200
        for _ in range(2):
            assert texts(server) == expected[model]
        assert server.post("/sleep?level=2", {})[0] == 200
        update(server, "a")
        for _ in range(2):
            assert texts(server) == expected[root / "a"]
        code, refused = server.post("/update_weights", {"path": "nan"})
        assert (code, "stays as it was" in refused["error"]) == (503, True)
        assert texts(server) == expected[root / "a"]
        update(server, "b")
        send(server, root / "a")
        assert texts(server) == expected[root / "a"]
        assert len(received(root)) == 1
        server.signal(signal.SIGTERM)
        assert server.end()[0] == 0
        assert received(root) == []
