"""Prefill and decode apart: the tokens of one server, whatever becomes of the blocks on their way."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from e2e import faults
from e2e.clients import COMPLETE, LEFT, Load, Record
from e2e.conftest import Launch
from e2e.faults import MAX_CONCURRENT
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK, Oracle
from e2e.test_adapters import make_adapter
from e2e.test_membership import Admin, _shard, _wait_until_added

pytestmark = pytest.mark.timeout(300)

# Some blocks, and fewer positions than where the fault hook holds steps.
NUM_TOKENS = 30


def _body(number: int, seed: int | None = None, **parameters: Any) -> dict[str, Any]:
    sampling = {} if seed is None else {"do_sample": True, "temperature": 0.8, "seed": seed}
    return {
        "inputs": f"canary-{number:06x} is what the story begins with",
        "parameters": {"max_new_tokens": NUM_TOKENS, "ignore_eos": True, **sampling, **parameters},
    }


BODIES = [_body(number, number if number % 2 else None) for number in range(8)]
# Requests of which nobody has any block: each is sent in one test.
FRESH = [_body(number, number if number % 2 else None) for number in range(20, 29)]


def _flags(tmp: Path, model: Path, *more: str) -> list[str]:
    limits = (
        f"--max-concurrent-requests={MAX_CONCURRENT}",
        "--max-restarts=1000",
        "--max-batch-prefill-tokens=64",
    )
    adapters = ("--max-loras=2", "--allow-runtime-lora-updating", f"--lora-root={tmp}")
    return [f"--model-id={model}", "--dtype=float32", *limits, *adapters, *more]


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A replica that computes prompts, and one that generates."""
    tmp = tmp_path_factory.mktemp("run")
    roles = ("--num-replicas=2", "--role=prefill,decode", f"--admin-socket={tmp / 'admin.sock'}")
    holds = (faults.hold_flag(tmp), f"--fault=hold-blocks:{tmp / 'blocks'}")
    with Launched(tmp, *_flags(tmp, model, *roles, *holds)) as launched:
        launched.wait_until_serving()
        _wait_for_both(launched)
        yield launched


@pytest.fixture(scope="module")
def one(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    """A server of the same model without replicas."""
    tmp = tmp_path_factory.mktemp("one")
    with Launched(tmp, *_flags(tmp, model)) as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module")
def learned(server: Launched, one: Launched) -> Oracle:
    known = Oracle(one, MAX_CONCURRENT)
    known.learn([*BODIES, *FRESH])
    known.server = server
    return known


@pytest.fixture
def oracle(learned: Oracle) -> Oracle:
    learned.begin()
    return learned


def _wait_for_both(server: Launched) -> None:
    wait_until(lambda: faults.ready(server) == [True, True], faults.RESTART_S * SLACK)


class Counts(dict[str, float]):
    """The metrics of transfers."""

    @classmethod
    def of(cls, server: Launched) -> "Counts":
        lines = server.get("/metrics")[1].decode().splitlines()
        found = [re.fullmatch(r"tgi_block_transfer(\S+) ([\d.e+]+)", line) for line in lines]
        return cls({it[1]: float(it[2]) for it in found if it and "bucket" not in it[1]})

    @property
    def copied(self) -> float:
        return self['s{result="copied"}']

    @property
    def failed(self) -> float:
        return self['s{result="failed"}']

    @property
    def blocks(self) -> float:
        return self["_blocks"]


@contextmanager
def _held_on_the_way(server: Launched, body: dict[str, Any]) -> Iterator[Load]:
    """A request that has its first token, and whose blocks are held where they were computed."""
    gate = server.tmp / "blocks"
    gate.touch()
    try:
        load = Load(server, [body])
        load.wait_for_each(1)
        assert load.ends() == []
        yield load
    finally:
        gate.unlink()


def _what_counts(reply: Any) -> Any:
    """A reply without what every reply has another of."""
    if isinstance(reply, Mapping):
        changing = ("id", "created", "timings", "usage")
        return {name: _what_counts(value) for name, value in reply.items() if name not in changing}
    return [_what_counts(value) for value in reply] if isinstance(reply, list) else reply


PROMPT = "What the story begins with, and what comes after that. "
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("/generate", _body(100)),
    "sampled": ("/generate", _body(101, 7, top_k=20, repetition_penalty=1.2)),
    "a long prompt, in chunks": ("/generate", {**_body(102), "inputs": "102 " + 3 * PROMPT}),
    "log probabilities": (
        "/generate",
        _body(103, details=True, decoder_input_details=True, top_n_tokens=3),
    ),
    "a grammar": (
        "/generate",
        _body(104, ignore_eos=False, grammar={"type": "regex", "value": "[a-f]{8}[0-9]{12}"}),
    ),
    "several replies": (
        "/v1/completions",
        {"prompt": "105 " + PROMPT, "max_tokens": 20, "n": 3, "seed": 3, "temperature": 0.9},
    ),
    "an adapter": ("/generate", _body(106, adapter_id="late")),
    "one token": ("/generate", _body(107, max_new_tokens=1)),
}


def test_requests_of_all_kinds_get_the_tokens_of_one_server(server: Launched, one: Launched) -> None:
    assert json.loads(server.get("/info")[1])["replica_roles"] == ["prefill", "decode"]
    for each in (server, one):
        folder = str(make_adapter(each.tmp / "late", 3))
        body = {"lora_name": "late", "lora_path": folder}
        with each.request("POST", "/v1/load_lora_adapter", body) as reply:
            assert reply.status == 200, reply.read()
    before = Counts.of(server)
    for kind, (path, body) in KINDS.items():
        replies = [each.post(path, body) for each in (server, one)]
        assert [status for status, _ in replies] == [200, 200], (kind, replies)
        assert _what_counts(replies[0][1]) == _what_counts(replies[1][1]), kind
    after = Counts.of(server)
    # Where a request has three replies, each is passed on; the reply of a single token has already ended.
    assert (after.copied - before.copied, after.failed) == (len(KINDS) - 1 + 2, 0)
    assert after.blocks > before.blocks
    assert after["_bytes"] > 0


def test_many_at_a_time_get_their_own_tokens(server: Launched, oracle: Oracle) -> None:
    before = Counts.of(server)
    oracle.check(Load(server, BODIES).finish())
    after = Counts.of(server)
    # One more looks whether the server is ready: its one token was its last.
    assert (after.copied - before.copied, after.failed - before.failed) == (len(BODIES), 0)


def test_blocks_that_are_there_already_do_not_travel(server: Launched) -> None:
    text = "200 " + 2 * PROMPT
    replies, travelled = [], []
    for _ in range(2):
        before = Counts.of(server)
        replies.append(server.post("/generate", {**_body(200), "inputs": text})[1]["generated_text"])
        after = Counts.of(server)
        assert (after.copied - before.copied, after.failed) == (1, before.failed)
        travelled.append(after.blocks - before.blocks)
    # One token more than there are bytes; the last position is computed where it generates.
    assert (travelled, replies[0] == replies[1]) == ([(len(text) + 1) // 16, 0], True)


def test_who_leaves_meanwhile_leaves_nothing_behind(server: Launched, oracle: Oracle) -> None:
    gate = server.tmp / "blocks"
    gate.touch()
    try:
        [record] = Load(server, [FRESH[0]], leave_after=1).finish()
        wait_until(lambda: faults.num_requests(server) == 0, 60)
        assert json.loads(server.get("/stats")[1])["kv_blocks_used"] > 0, (
            "they are held until the copy has ended"
        )
    finally:
        gate.unlink()
    assert record.end == LEFT
    oracle.check([record])


def test_a_deadline_in_the_queue_does_not_count_on_the_way(server: Launched) -> None:
    with _held_on_the_way(server, _body(300, queue_timeout_ms=50)) as load:
        begun = time.monotonic()
        # Others are served while it is on its way, for longer than it might wait in the queue.
        while time.monotonic() < begun + 0.2:
            assert server.post("/generate", _body(301, max_new_tokens=1))[0] == 200
        assert load.ends() == []
    [record] = load.finish()
    assert (record.ends, len(record.tokens)) == ([COMPLETE], NUM_TOKENS)


def _go_on(load: Load, oracle: Oracle) -> Record:
    [record] = load.finish()
    assert record.ends == [COMPLETE]
    assert oracle.is_right(record)
    return record


def test_where_the_sender_dies_the_prompt_is_computed_again(server: Launched, oracle: Oracle) -> None:
    before = Counts.of(server)
    with faults.held(server):
        with _held_on_the_way(server, FRESH[1]) as load:
            faults.kill(faults.shard_of(server, 0))
            _go_on(load, oracle)
        wait_until(lambda: faults.ready(server) == [False, True], faults.RESTART_S * SLACK)
        assert Counts.of(server).failed == before.failed + 1
        # Nobody computes prompts for it now.
        _go_on(Load(server, [FRESH[2]]), oracle)
        assert Counts.of(server).copied == before.copied
    _wait_for_both(server)


def test_where_the_receiver_dies_the_sender_goes_on(server: Launched, oracle: Oracle) -> None:
    before = Counts.of(server)
    with faults.held(server):
        with _held_on_the_way(server, FRESH[3]) as load:
            faults.kill(faults.shard_of(server, 1))
            _go_on(load, oracle)
        wait_until(lambda: faults.ready(server) == [True, False], faults.RESTART_S * SLACK)
        # Nobody generates for it now.
        _go_on(Load(server, [FRESH[4]]), oracle)
        assert Counts.of(server).copied == before.copied
    _wait_for_both(server)
    _go_on(Load(server, [FRESH[5]]), oracle)
    assert Counts.of(server).copied == before.copied + 1


def test_after_a_new_router_blocks_travel_again(server: Launched, oracle: Oracle) -> None:
    faults.kill(faults.router(server))
    faults.wait_until_ready(server)
    _wait_for_both(server)
    _go_on(Load(server, [FRESH[6]]), oracle)
    assert Counts.of(server).copied == 1


def test_a_replica_that_is_added_generates_for_the_others(
    server: Launched, oracle: Oracle, model: Path
) -> None:
    admin = Admin(server.tmp / "admin.sock")
    flags = ("--dtype=float32", "--max-loras=2", "--max-step-tokens=64", "--role=decode")
    with _shard(server.tmp, model, "more.sock", *flags):
        added = _wait_until_added(admin, server.tmp / "more.sock")
        assert (added["replica"], added["role"]) == (2, "decode")
        assert admin.call("POST", "/replicas/1/drain")[0] == 200
        before = Counts.of(server)
        _go_on(Load(server, [FRESH[7]]), oracle)
        assert Counts.of(server).copied == before.copied + 1
        [_, old, new] = admin.call("GET", "/replicas")[1]["replicas"]
        assert (old["state"], new["prompt_tokens_total"] > 0) == ("drained", True)
        assert admin.call("POST", "/replicas/1/resume")[0] == 200
        assert admin.call("DELETE", "/replicas/2?limit_s=0")[0] == 200


def test_each_rank_fetches_from_its_fellow(
    launch: Launch, model: Path, tmp_path: Path, oracle: Oracle
) -> None:
    ranks = ("--num-shard=2", "--num-replicas=2", "--role=prefill,decode")
    server = launch(*_flags(tmp_path, model, *ranks)).wait_until_serving()
    _wait_for_both(server)
    records = Load(server, BODIES[:4]).finish()
    assert all(record.ends == [COMPLETE] and oracle.is_right(record) for record in records)
    counts = Counts.of(server)
    assert (counts.copied, counts.failed) == (4, 0)


def test_roles_that_make_no_sense_are_refused_by_name(launch: Launch, model: Path) -> None:
    for flags, said in (
        (("--role=prefill,decode",), "--role has 2 roles, and --num-replicas is 1"),
        (
            ("--role=decode", "--prefix-caching=false"),
            "--role decode and --prefix-caching false exclude each other",
        ),
        (("--role=reader",), "invalid value 'reader' for '--role <ROLES>'"),
    ):
        code, stderr = launch(f"--model-id={model}", *flags).end()
        assert code == 2
        assert said in stderr
