"""An operator with a shell asks what is going on: SIGUSR1."""

import json
import signal
from pathlib import Path

from e2e.conftest import Launch
from e2e.launched import events, wait_until


def test_sigusr1_logs_the_live_state_and_ends_nothing(launch: Launch, model: Path) -> None:
    launched = launch(f"--model-id={model}", "--max-connections=77").wait_until_serving()
    body = {"inputs": "x", "parameters": {"max_new_tokens": 200}}
    with launched.request("POST", "/generate_stream", body) as response:
        stream = events(response)
        next(stream)
        launched.signal(signal.SIGUSR1)
        wait_until(lambda: "live state: " in launched.stderr, 10)
        *_, last = stream
    assert json.loads(last)["generated_text"]
    [line] = [line for line in launched.stderr.splitlines() if "live state: " in line]
    state = json.loads(line.split("live state: ", 1)[1])
    assert state["max_connections"] == 77
    assert state["connections"] >= 1
    assert state["status"] == "ready"
    assert {"waiting", "running", "kv_blocks_used", "kv_blocks_total"} <= state.keys()
    launched.signal(signal.SIGTERM)
    assert launched.end()[0] == 0
