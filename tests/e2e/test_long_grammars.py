"""A grammar that takes ever longer: others go on beside it, and the server that computes it ends when it is told to."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from itertools import islice
from pathlib import Path
from typing import Any

from e2e import faults
from e2e.conftest import Launch
from e2e.launched import Launched, events
from e2e.oracle import SLACK, check_nothing_is_left

# To find the tokens that may come next takes longer with every token: the cube of their number.
AMBIGUOUS = {"type": "grammar", "value": 'start: e\ne: e e e | e e | "x"'}
# From about this token on, what comes next is computed by a thread of a low priority.
LONG_FROM = 120


@contextmanager
def attack(server: Launched, max_tokens: int = 150) -> Iterator[HTTPResponse]:
    """A stream of one `x` after the other, under that grammar."""
    status, tokens = server.post("/tokenize", {"inputs": "x"})
    assert status == 200, tokens
    # A bias for the shortest token of the grammar, so that the output becomes long.
    bias = {str(token["id"]): 100.0 for token in tokens if token["text"].strip() == "x"}
    body = {"prompt": "x", "max_tokens": max_tokens, "logit_bias": bias, "response_format": AMBIGUOUS}
    # Nothing comes while a shard starts again.
    patience_s = faults.RESTART_S * SLACK
    with server.request("POST", "/v1/completions", {**body, "stream": True}, patience_s) as response:
        assert response.status == 200
        yield response


def texts(stream: Iterator[str]) -> Iterator[str]:
    """The text of each event."""
    for event in stream:
        if event != "[DONE]":
            reply: dict[str, Any] = json.loads(event)
            assert "choices" in reply, reply
            yield reply["choices"][0]["text"]


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes for each processor want all of it."""
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(load.wait)
            stack.callback(load.kill)
        yield


def test_a_grammar_that_gets_ever_slower_lets_others_pass(demo: Launched) -> None:
    bystander = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    with attack(demo) as response, ThreadPoolExecutor(1) as pool:
        attacking = pool.submit(lambda: "".join(texts(events(response))))
        num_answered = 0
        while not attacking.done():
            assert demo.post("/generate", bystander)[0] == 200
            num_answered += 1
        assert attacking.result() == "x" * 150
    assert num_answered > 10


def test_a_shard_that_is_killed_at_a_long_grammar_is_gone_soon_on_a_busy_machine(launch: Launch) -> None:
    """It is gone when the last of its threads has ended, which needs a processor for that."""
    server = launch().wait_until_serving()
    with attack(server) as response:
        stream = texts(events(response))
        text = "".join(islice(stream, LONG_FROM))
        with busy_machine():
            text += "".join(islice(stream, 2))
            shard = faults.shard(server, 0)
            faults.kill(shard)
            faults.time_until(lambda: not Path(f"/proc/{shard}").exists(), 2.0 * SLACK)
        text += "".join(stream)
    assert text == "x" * 150
    assert "did not end when killed" not in server.stderr


def test_a_server_that_computes_a_long_grammar_stops_when_it_is_asked_to(launch: Launch) -> None:
    server = launch().wait_until_serving()
    with attack(server) as response:
        stream = texts(events(response))
        text = "".join(islice(stream, LONG_FROM))
        server.signal(signal.SIGTERM)
        text += "".join(stream)
    assert text == "x" * 150
    assert server.end()[0] == 0
    check_nothing_is_left(server)
