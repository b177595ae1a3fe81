"""Ranks that meet at a launcher over TCP: each side proves that it knows the secret; sums are those of one machine."""

import hashlib
import hmac
import json
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Issued
from driver import Driver, Sequence
from penstock_server.base.config import Rendezvous
from penstock_server.base.mutual_tls import MutualTls
from penstock_server.engine.sampling_params import SamplingParams
from penstock_server.network.interfaces import interface_with
from penstock_server.network.rendezvous import LauncherStore, RendezvousFailed, prove
from shard_client import execute_on_shards, running_shards
from test_parity import prompts

pytestmark = pytest.mark.timeout(400)

SECRET = "0123456789abcdef"
START = 3
GROUP = 1


class Launcher:
    """The store as a launcher has it, written from its description and not from its code."""

    def __init__(self, secret: str = SECRET, shows: Issued | None = None) -> None:
        self.values: dict[str, str] = {}
        self._shows = shows
        self._secret = secret.encode()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        if self._shows is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._shows.ca)
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(self._shows.cert, self._shows.key)
            try:
                connection = context.wrap_socket(connection, server_side=True)
            except OSError:
                return
        with connection, connection.makefile("rwb") as lines:

            def say(message: object) -> None:
                lines.write(json.dumps(message).encode() + b"\n")
                lines.flush()

            def proof(side: str) -> str:
                text = f"penstock {side} {mine} {theirs['challenge']}".encode()
                return hmac.digest(self._secret, text, hashlib.sha256).hex()

            mine = secrets.token_hex(32)
            say({"challenge": mine})
            theirs = json.loads(lines.readline())
            say({"proof": proof("server")})
            if theirs["proof"] != proof("client"):
                return
            hello = json.loads(lines.readline())
            say(
                {"welcome": None}
                if hello == {"rank": {"group": GROUP, "start": START}}
                else {"refused": "another start"}
            )
            for line in lines:
                say({"value": self._answer(json.loads(line))})

    def _answer(self, request: dict[str, dict[str, Any]]) -> str | None:
        [(kind, fields)] = request.items()
        key = fields["key"]
        with self._lock:
            if kind == "set" or (kind == "replace" and self.values.get(key) == fields["expected"]):
                self.values[key] = fields["value"]
            if kind == "delete":
                return self.values.pop(key, None)
            return self.values.get(key)


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with closing(Launcher()) as launcher:
        yield launcher


def _store(
    launcher: Launcher, secret: str = SECRET, start: int = START, tls: MutualTls | None = None
) -> AbstractContextManager[LauncherStore]:
    return closing(
        LauncherStore(Rendezvous("127.0.0.1", launcher.port, GROUP, start, secret, tls), timeout_s=20)
    )


def test_a_proof_is_what_launchers_compute() -> None:
    # The test of the launcher's nodes/channel.rs has the same.
    expected = "0c2311f32fd49560bd5f46ee144ffcc70c60dfed57c59995f6b8bb557df37a87"
    assert prove(SECRET.encode(), "client", "aa", "bb") == expected


def test_the_store_keeps_what_pytorch_asks_of_one(launcher: Launcher) -> None:
    with _store(launcher) as store, _store(launcher) as other:
        store.set("bytes", b"\x00\xff\n")
        assert other.get("bytes") == b"\x00\xff\n"
        assert [store.add("count", 2), other.add("count", 3), store.add("count", 0)] == [2, 5, 5]
        assert other.compare_set("mine", "", "a") == b"a"
        assert other.compare_set("mine", "b", "c") == b"a"
        assert other.compare_set("mine", "a", "c") == b"c"
        assert store.check(["bytes", "count"])
        assert not store.check(["bytes", "none"])
        assert (store.delete_key("bytes"), store.delete_key("bytes")) == (True, False)
        with pytest.raises(RendezvousFailed, match="no rank has said none in time"):
            store.wait(["none"], timedelta(seconds=0.1))


def test_a_value_that_comes_later_is_waited_for(launcher: Launcher) -> None:
    with _store(launcher) as store, _store(launcher) as other:
        later = threading.Timer(0.2, other.set, ("late", b"x"))
        later.start()
        assert store.get("late") == b"x"
        later.join()


@pytest.mark.parametrize("secret", ["0123456789abcdeF", "0123456789abcdef0"])
def test_a_launcher_that_does_not_know_the_secret_is_told_nothing(launcher: Launcher, secret: str) -> None:
    with pytest.raises(RendezvousFailed, match="does not know the secret"):
        _store(launcher, secret)
    assert launcher.values == {}


def test_a_rank_of_another_start_is_refused(launcher: Launcher) -> None:
    with pytest.raises(RendezvousFailed, match="another start"):
        _store(launcher, start=START + 1)


def test_launcher_and_ranks_show_each_other_certificates_of_one_authority(tmp_path: Path) -> None:
    ours, theirs = (Authority(tmp_path / name).issue() for name in ("ours", "theirs"))
    other_name = Authority(tmp_path / "named").issue("localhost")
    with closing(Launcher(shows=ours)) as launcher:
        with _store(launcher, tls=MutualTls(*ours)) as store:
            store.set("key", "value")
            assert store.get("key") == b"value"
        for shown in (theirs, theirs._replace(ca=ours.ca)):
            with pytest.raises((OSError, RendezvousFailed)):
                _store(launcher, tls=MutualTls(*shown))
    with closing(Launcher(shows=other_name)) as launcher, pytest.raises(ssl.SSLCertVerificationError):
        _store(launcher, tls=MutualTls(*other_name))


def test_a_launcher_that_ends_is_noticed(launcher: Launcher) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    meeting = Rendezvous("127.0.0.1", listener.getsockname()[1], GROUP, START, SECRET)
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    with listener, pytest.raises(RendezvousFailed, match="closed the connection"):
        LauncherStore(meeting, timeout_s=20)


def test_the_interface_with_an_address_is_found() -> None:
    assert interface_with("127.0.0.1") == "lo"
    with pytest.raises(OSError, match=r"192\.0\.2\.7"):
        interface_with("192.0.2.7")


@pytest.mark.parametrize(("world_size", "num_stages", "per_node"), [(4, 1, 2), (2, 2, 1)])
def test_ranks_that_meet_at_a_launcher_give_the_tokens_of_one_machine(
    saved_model: Callable[..., Any],
    launcher: Launcher,
    tmp_path: Path,
    world_size: int,
    num_stages: int,
    per_node: int,
) -> None:
    model = saved_model()
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    meeting = ("--rendezvous", f"tcp:127.0.0.1:{launcher.port}", "--secret-file", secret)
    place = ("--group-number", GROUP, "--group-start", START, "--ranks-per-node", per_node)
    stages = ("--num-stages", num_stages)
    outputs = []
    for folder, flags in ((tmp_path / "here", ()), (tmp_path / "nodes", (*meeting, *place))):
        with running_shards(model.folder, folder, world_size, (*flags, *stages)) as shards:
            params = [SamplingParams(prompt_logprobs=True), SamplingParams(temperature=1.0, seed=5)]
            sequences = [Sequence(prompt, 6, params[n % 2]) for n, prompt in enumerate(prompts(6))]
            Driver(execute_on_shards(shards), block_size=16).run(sequences, seed=1)
            outputs.append([(it.output, it.logprobs) for it in sequences])
            assert [shard.stop() for shard in shards] == [0] * world_size
    assert outputs[0] == outputs[1], "to the last bit: both add in the order of ranks"
    assert launcher.values, "they did not meet there"
