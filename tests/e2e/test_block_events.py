"""Block events, read by pyzmq as other routers read them: tokens, chains, evictions, replays, ranks."""

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import vllm_events as vllm
import zmq
from e2e import faults
from e2e.conftest import Launch
from e2e.launched import Launched, reserved_port, wait_until
from e2e.oracle import SLACK

pytestmark = pytest.mark.timeout(300)

BLOCK_SIZE = 16
NUM_BLOCKS = 20
PATIENCE_MS = int(10_000 * SLACK)
END = (-1).to_bytes(8, "big", signed=True)

Message = tuple[int, vllm.EventBatch]


@dataclass
class Account:
    """The state of the caches that a reader knows from events alone, for each rank."""

    blocks: dict[int, dict[int, tuple[int | None, list[int]]]] = field(default_factory=dict)
    num_removed: int = 0

    def follow(self, batch: vllm.EventBatch) -> None:
        assert batch.data_parallel_rank is not None
        known = self.blocks.setdefault(batch.data_parallel_rank, {})
        for event in batch.events:
            match event:
                case vllm.BlockStored():
                    self._store(known, event)
                case vllm.BlockRemoved():
                    for removed in event.block_hashes:
                        assert known.pop(removed, None) is not None, "it was not stored"
                    self.num_removed += len(event.block_hashes)
                case vllm.AllBlocksCleared():
                    known.clear()

    @staticmethod
    def _store(known: dict[int, tuple[int | None, list[int]]], event: vllm.BlockStored) -> None:
        assert (event.block_size, event.medium, event.lora_id) == (BLOCK_SIZE, "GPU", None)
        assert len(event.token_ids) == BLOCK_SIZE * len(event.block_hashes)
        parent = event.parent_block_hash
        for number, block in enumerate(event.block_hashes):
            assert block not in known, "it is stored already"
            known[block] = (parent, event.token_ids[number * BLOCK_SIZE : (number + 1) * BLOCK_SIZE])
            parent = block

    def num_matched(self, rank: int, tokens: list[int]) -> int:
        """Tokens from the start that a chain of blocks holds."""
        found, parent = 0, None
        by_content = {(before, tuple(ids)): block for block, (before, ids) in self.blocks[rank].items()}
        while found + BLOCK_SIZE <= len(tokens):
            parent = by_content.get((parent, tuple(tokens[found : found + BLOCK_SIZE])))
            if parent is None:
                break
            found += BLOCK_SIZE
        return found


class Reader:
    """A SUB socket, and one that asks for replays."""

    def __init__(self, events: str, replay: str | None = None, topic: bytes = b"") -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        self.socket.connect(events)
        self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.replay = replay

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close(linger=0)
        self.context.destroy(linger=0)

    def next(self) -> Message:
        topic, number, payload = self.socket.recv_multipart()
        assert topic == b""
        return int.from_bytes(number, "big"), msgspec.msgpack.decode(payload, type=vllm.EventBatch)

    def again(self, start: int) -> list[Message]:
        """The messages that were published from this number on."""
        messages: list[Message] = []
        with self.asking(zmq.DEALER) as asking:
            asking.send_multipart([b"", start.to_bytes(8, "big")])
            while True:
                empty, number, payload = asking.recv_multipart()
                assert empty == b""
                if number == END:
                    assert payload == b""
                    return messages
                batch = msgspec.msgpack.decode(payload, type=vllm.EventBatch)
                messages.append((int.from_bytes(number, "big"), batch))

    @contextlib.contextmanager
    def asking(self, kind: int) -> Iterator[zmq.Socket[bytes]]:
        """A socket of this kind to where replays are asked for."""
        assert self.replay
        socket = self.context.socket(kind)
        try:
            socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
            socket.connect(self.replay)
            yield socket
        finally:
            socket.close(linger=0)


@contextlib.contextmanager
def _published() -> Iterator[tuple[list[str], str, str]]:
    """Flags with two endpoints, and those."""
    with reserved_port() as events, reserved_port() as replay:
        endpoints = (f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}")
        yield (
            [f"--kv-events-endpoint={endpoints[0]}", f"--kv-events-replay-endpoint={endpoints[1]}"],
            *endpoints,
        )


def _complete(server: Launched, text: str, max_tokens: int) -> tuple[list[int], int]:
    """The tokens of a prompt and its reply, and how many of them were cached."""
    body = {
        "prompt": text,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    [choice] = reply["choices"]
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    return [*choice["prompt_token_ids"], *choice["token_ids"]], cached


def _text(number: int, length: int) -> str:
    return "".join(chr(97 + (number * 7 + place * place) % 26) for place in range(length))


@pytest.fixture(scope="module")
def endpoints() -> Iterator[tuple[list[str], str, str]]:
    with _published() as endpoints:
        yield endpoints


@pytest.fixture(scope="module")
def server(
    endpoints: tuple[list[str], str, str], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    tmp = tmp_path_factory.mktemp("run")
    memory = f"--max-batch-total-tokens={NUM_BLOCKS * BLOCK_SIZE}"
    with Launched(tmp, f"--model-id={model}", "--dtype=float32", memory, *endpoints[0]) as launched:
        yield launched.wait_until_serving()


class Follower:
    """An account that is kept up to date by asking for what was published since."""

    def __init__(self, reader: Reader) -> None:
        self.account = Account()
        self.next_number = 0
        self._reader = reader

    def catch_up(self) -> None:
        for number, batch in self._reader.again(self.next_number):
            assert number == self.next_number, "none is missing"
            self.account.follow(batch)
            self.next_number += 1

    def is_told(self, tokens: list[int], num_matched: int) -> bool:
        self.catch_up()
        return self.account.num_matched(0, tokens) == num_matched


def test_an_account_from_events_says_what_is_cached(
    server: Launched, endpoints: tuple[list[str], str, str]
) -> None:
    with Reader(*endpoints[1:]) as reader:
        follower = Follower(reader)
        for turn in range(24):
            tokens, _ = _complete(server, _text(turn * 5 % 8, 70 + turn % 9), 12)
            # The last token's KV is never computed.
            wanted = (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
            wait_until(partial(follower.is_told, tokens, wanted), faults.RESTART_S * SLACK)
            again = _text((turn + 3) % 8, 70)
            tokens, cached = _complete(server, again, 1)
            expected = follower.account.num_matched(0, tokens[: len(again) - 1])
            assert cached == expected, "what the account says was found"
            assert len(follower.account.blocks[0]) <= NUM_BLOCKS
            follower.catch_up()
        assert follower.account.num_removed > NUM_BLOCKS, "blocks were taken for others"


def test_a_subscriber_sees_a_request_while_it_runs(
    server: Launched, endpoints: tuple[list[str], str, str]
) -> None:
    with Reader(*endpoints[1:]) as reader:
        old = [number for number, _ in reader.again(0)]
        assert old == list(range(len(old)))
        # A subscription takes a moment: until it is there, messages go by.
        reader.socket.setsockopt(zmq.RCVTIMEO, 50)
        for number in range(200):
            _complete(server, _text(1000 + number, 20), 1)
            with contextlib.suppress(zmq.Again):
                reader.next()
                break
        reader.socket.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
        tokens, _ = _complete(server, _text(77, 40), 24)
        stored: list[vllm.BlockStored] = []
        numbers: list[int] = []
        while sum(len(event.block_hashes) for event in stored) < (len(tokens) - 1) // BLOCK_SIZE:
            number, batch = reader.next()
            numbers.append(number)
            own = [event for event in batch.events if isinstance(event, vllm.BlockStored)]
            stored += [event for event in own if event.parent_block_hash or event.token_ids[:8] == tokens[:8]]
        assert [token for event in stored for token in event.token_ids] == tokens[
            : (len(tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
        ]
        assert all(after.parent_block_hash == before.block_hashes[-1] for before, after in pairwise(stored))
        assert stored[0].parent_block_hash is None
        assert all(after == before + 1 for before, after in pairwise(numbers))
        assert [number for number, _ in reader.again(numbers[0])] == numbers, "the same, asked for again"


def test_readers_that_ask_once_and_that_are_broken_hurt_nobody(
    server: Launched, endpoints: tuple[list[str], str, str]
) -> None:
    addresses = [("127.0.0.1", int(endpoint.rsplit(":", 1)[1])) for endpoint in endpoints[1:]]
    broken = [socket.create_connection(address) for address in addresses for _ in range(10)]
    try:
        for number, connection in enumerate(broken):
            connection.sendall(
                [b"GET / HTTP/1.1\r\n\r\n" * 5, b"\xff" + bytes(8) + b"\x7f\x03", b""][number % 3]
            )
        with Reader(*endpoints[1:]) as reader, reader.asking(zmq.REQ) as asking:
            asking.send((2**62).to_bytes(8, "big"))
            assert asking.recv_multipart() == [END, b""]
            assert _complete(server, _text(5, 30), 2)[0]
    finally:
        for connection in broken:
            connection.close()


def test_it_listens_where_it_is_told_and_nowhere_else(
    server: Launched, endpoints: tuple[list[str], str, str]
) -> None:
    assert server.address
    ports = {int(endpoint.rsplit(":", 1)[1]) for endpoint in endpoints[1:]}
    loopback = {("0100007F", port) for port in {server.address[1], *ports}}
    assert _listening([server.process.pid, *server.children()]) == loopback


def test_by_default_one_port_is_open(launch: Launch, model: Path) -> None:
    server = launch(f"--model-id={model}").wait_until_serving()
    assert server.address
    assert _listening([server.process.pid, *server.children()]) == {("0100007F", server.address[1])}
    assert "tgi_block_events_published 0" in server.get("/metrics")[1].decode()


def _listening(pids: list[int]) -> set[tuple[str, int]]:
    """The TCP addresses on which these processes listen, as the system writes them."""
    links = [link for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {found[1] for link in links if (found := re.match(r"socket:\[(\d+)\]", _target(link)))}
    sockets = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
    ]
    own = [columns[1] for columns in sockets if columns[3] == "0A" and columns[9] in inodes]
    return {(address.split(":")[0], int(address.split(":")[1], 16)) for address in own}


def _target(link: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(link)
    return ""


def test_two_replicas_are_two_ranks_and_a_new_router_begins_anew(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    with _published() as (flags, events, replay):
        limits = ("--max-restarts=10", "--replica-policy=round-robin", faults.hold_flag(tmp_path))
        server = launch(f"--model-id={model}", "--num-replicas=2", "--dtype=float32", *limits, *flags)
        server.wait_until_serving()
        wait_until(lambda: _are_ready(server), faults.RESTART_S * SLACK)
        prompts = [_complete(server, _text(number, 40), 2)[0] for number in range(8)]

        def account() -> Account:
            with Reader(events, replay) as reader:
                follower = Follower(reader)
                follower.catch_up()
            return follower.account

        def is_known_once(prompt: list[int]) -> bool:
            known = account()
            return sorted(known.num_matched(rank, prompt) for rank in (0, 1)) == [0, 32]

        wait_until(lambda: all(is_known_once(prompt) for prompt in prompts), faults.RESTART_S * SLACK)
        faults.kill(faults.shard_of(server, 0))
        wait_until(lambda: account().blocks[0] == {}, faults.RESTART_S * SLACK)
        assert account().blocks[1], "the other one holds what it held"
        faults.wait_until_ready(server)
        faults.kill(faults.router(server))
        faults.wait_until_ready(server)
        wait_until(lambda: _ranks(events, replay) == {0, 1}, faults.RESTART_S * SLACK)
        assert account().blocks == {0: {}, 1: {}}, "what the one before knew is gone with it"


def _are_ready(server: Launched) -> bool:
    return all(replica["ready"] for replica in json.loads(server.get("/stats")[1])["replicas"])


def _ranks(events: str, replay: str) -> set[int | None]:
    with Reader(events, replay) as reader:
        return {batch.data_parallel_rank for _, batch in reader.again(0)}


def test_a_unix_socket_is_for_its_owner_and_maps_are_written_if_asked_for(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    events, replay = tmp_path / "events", tmp_path / "replay"
    flags = (f"--kv-events-endpoint=ipc://{events}", f"--kv-events-replay-endpoint=ipc://{replay}")
    server = launch(f"--model-id={model}", *flags, "--kv-events-format=map", "--kv-events-topic=kv@pod@tiny")
    server.wait_until_serving()
    assert [path.stat().st_mode & 0o777 for path in (events, replay)] == [0o600, 0o600]
    with Reader(f"ipc://{events}", topic=b"kv@pod") as reader:
        reader.socket.setsockopt(zmq.RCVTIMEO, 50)
        for number in range(200):
            _complete(server, _text(number, 40), 1)
            with contextlib.suppress(zmq.Again):
                topic, _, payload = reader.socket.recv_multipart()
                break
        assert topic == b"kv@pod@tiny"
        batch = msgspec.msgpack.decode(payload, type=vllm.MapEventBatch)
        assert any(isinstance(event, vllm.MapBlockStored) for event in batch.events)
        assert b"BlockStored" in payload
        assert b"token_ids" in payload
    server.process.terminate()
    server.end()
    assert not events.exists()
    assert not replay.exists()


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:5557", "tcp://*:5557", "tcp://[::]:5557"])
def test_other_machines_must_be_let_in_by_a_flag(launch: Launch, model: Path, endpoint: str) -> None:
    code, stderr = launch(f"--model-id={model}", f"--kv-events-endpoint={endpoint}").end()
    assert code == 2
    assert "--kv-events-allow-remote" in stderr
    assert "--kv-events-endpoint" in stderr
    assert "shard 0" not in stderr, "before anything is loaded"


def test_wrong_endpoints_are_refused_by_name(launch: Launch, model: Path) -> None:
    long = "ipc:///" + "a" * 107
    for flag, says in [
        ("tcp://host:1", "`tcp://host:1`"),
        (long, "at most 107 bytes"),
        ("tcp://*:0", "`tcp://*:0`"),
    ]:
        code, stderr = launch(f"--model-id={model}", f"--kv-events-endpoint={flag}").end()
        assert (code, says in stderr) == (2, True), stderr
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        server = launch(f"--model-id={model}", f"--kv-events-endpoint={endpoint}")
        code, stderr = server.end()
        assert code != 0
        assert f"cannot listen on --kv-events-endpoint {endpoint}" in stderr
