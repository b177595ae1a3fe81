"""The proxy over two whole servers: bytes as they are, conversations that return, and one server killed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import COMPLETE, ERROR, Load, make_body
from e2e.launched import Launched, wait_until
from e2e.oracle import SLACK
from e2e.proxied import Proxied

pytestmark = pytest.mark.timeout(300)

NUM_STREAMS = 6
BODIES = [make_body(number, 150) for number in range(NUM_STREAMS)]
ROUTER = Path(sys.executable).parent / "penstock-router"


@pytest.fixture(scope="module")
def servers(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launched, Launched]]:
    """Two servers that know nothing of each other, and start at the same time."""
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    flags = (f"--model-id={model}", "--dtype=float32")
    with (
        Launched(folders[0], *flags, faults.hold_flag(folders[0])) as first,
        Launched(folders[1], *flags, faults.hold_flag(folders[1])) as second,
    ):
        yield first.wait_until_serving(), second.wait_until_serving()


@pytest.fixture(scope="module")
def proxied(servers: tuple[Launched, Launched]) -> Iterator[Proxied]:
    with Proxied(servers) as proxied:
        wait_until(lambda: all(proxied.is_up(server) for server in servers), faults.RESTART_S * SLACK)
        yield proxied


def _stream(server: Launched | Proxied, path: str, body: object) -> bytes:
    with server.request("POST", path, body) as response:
        assert response.status == 200
        return response.read()


def test_a_stream_has_the_bytes_of_a_server(servers: tuple[Launched, Launched], proxied: Proxied) -> None:
    for body in BODIES[:2]:
        assert _stream(proxied, "/generate_stream", body) == _stream(servers[0], "/generate_stream", body)
    for path in ("/info", "/v1/models/none", "/none"):
        assert proxied.get(path) == servers[0].get(path)


def _hits(servers: tuple[Launched, Launched]) -> float:
    lines = "".join(server.get("/metrics")[1].decode() for server in servers).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("tgi_prefix_cache_hit_tokens "))


def _hits_of_conversations(servers: tuple[Launched, Launched], proxied: Proxied, about: str) -> float:
    """Prompt tokens that both servers find in their caches when three conversations take turns."""
    before = _hits(servers)
    for turn in range(3):
        for number in range(3):
            beginning = f"{number} of three that talk about {about}. " + "And they began so. " * 6
            text = beginning + "What comes then? " * turn
            status, reply = proxied.post("/generate", {"inputs": text, "parameters": {"max_new_tokens": 2}})
            assert status == 200, reply
    return _hits(servers) - before


def test_conversations_find_more_than_when_servers_take_turns(
    servers: tuple[Launched, Launched], proxied: Proxied
) -> None:
    found = _hits_of_conversations(servers, proxied, "a server")
    with Proxied(servers, "--upstream-policy=round-robin") as in_turn:
        wait_until(lambda: all(in_turn.is_up(server) for server in servers), faults.RESTART_S * SLACK)
        found_in_turn = _hits_of_conversations(servers, in_turn, "a router")
        assert in_turn.end() == 0
    assert found_in_turn > 0
    # In turn, the second part of a conversation is with the server that has not seen the first: 912 and 480 tokens.
    assert found >= 1.8 * found_in_turn
    for url in proxied.urls:
        assert proxied.metric(f'tgi_upstream_requests{{upstream="{url}"}}') >= 3, "both have conversations"


def test_sigusr1_logs_the_live_state_and_ends_nothing(
    servers: tuple[Launched, Launched], proxied: Proxied
) -> None:
    with faults.held(servers[0]), faults.held(servers[1]):
        load = Load(proxied, BODIES[:1])
        load.wait_for_each(5)
        proxied.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "live state: " in proxied.stderr, 10)
    assert [record.end for record in load.finish()] == [COMPLETE]
    [line] = [line for line in proxied.stderr.splitlines() if "live state: " in line]
    state = json.loads(line.split("live state: ", 1)[1])
    assert [it["url"] for it in state["upstreams"]] == proxied.urls
    assert {it["state"] for it in state["upstreams"]} == {"up"}
    assert sum(it["requests"] for it in state["upstreams"]) == 1
    assert state["connections"] >= 1


def test_a_killed_server_is_done_without(servers: tuple[Launched, Launched], proxied: Proxied) -> None:
    """The last test of the second server."""
    first, second = servers
    expected = {body["inputs"]: _tokens_of(first, body) for body in BODIES}
    with faults.held(first), faults.held(second):
        load = Load(proxied, BODIES)
        load.wait_for_each(5)
        assert [faults.num_requests(server) for server in servers] == [NUM_STREAMS // 2] * 2
        second.process.kill()
        wait_until(lambda: not proxied.is_up(second), faults.RESTART_S * SLACK)
        wait_until(lambda: len(load.ends()) == NUM_STREAMS // 2, faults.RESTART_S * SLACK)
        assert faults.is_ready(first)
        assert proxied.get("/health")[0] == 200
        short = {"inputs": "meanwhile", "parameters": {"max_new_tokens": 2}}
        assert [proxied.post("/generate", short)[0] for _ in range(3)] == [200] * 3
    records = load.finish()
    assert sorted(record.end or "" for record in records) == [COMPLETE] * 3 + [ERROR] * 3
    for record in records:
        whole = expected[record.body["inputs"]]
        if record.end == COMPLETE:
            assert record.tokens == whole
        else:
            assert record.tokens == whole[: len(record.tokens)]
            assert record.error is not None
            assert record.error["error_type"] == "generation"
            assert "the upstream stopped answering" in record.error["error"]


def _tokens_of(server: Launched, body: dict[str, object]) -> list[int]:
    """The tokens that a server generates when nothing happens to it."""
    [record] = Load(server, [body]).finish()
    assert record.end == COMPLETE
    return record.tokens


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--upstream=10.0.0.7"], "has no scheme: write http://HOST:PORT"),
        (["--upstream=http://a/v1"], "an upstream has no path"),
        (["--upstream=http://a", "--upstream", "http://a"], "--upstream http://a is given twice"),
        (
            ["--upstream=http://a", "--shard-sockets=a.sock"],
            "--shard-sockets cannot be used with --upstream: it is a flag of a router over shards",
        ),
        (["--upstream=http://a", "--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (
            ["--upstream=https://a", "--port=0", "--upstream-ca=/nowhere"],
            "cannot read --upstream-ca /nowhere",
        ),
    ],
)
def test_a_flag_that_is_wrong_is_named(flags: list[str], message: str) -> None:
    ended = subprocess.run([ROUTER, *flags], capture_output=True, text=True, timeout=60)
    assert ended.returncode in (1, 2)
    assert message in ended.stderr
