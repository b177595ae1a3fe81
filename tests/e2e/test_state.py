"""An operator with a shell asks what is going on: SIGUSR1."""

import json
import signal
from pathlib import Path

from e2e import faults
from e2e.clients import COMPLETE, make_body
from e2e.conftest import Launch
from e2e.launched import wait_until


def test_sigusr1_logs_the_live_state_and_ends_nothing(launch: Launch, model: Path, tmp_path: Path) -> None:
    flags = (f"--model-id={model}", "--max-connections=77", faults.hold_flag(tmp_path))
    launched = launch(*flags).wait_until_serving()
    with faults.held_load(launched, [make_body(0, 200)]) as load:
        launched.signal(signal.SIGUSR1)
        wait_until(lambda: "live state: " in launched.stderr, 10)
    assert [record.end for record in load.finish()] == [COMPLETE]
    [line] = [line for line in launched.stderr.splitlines() if "live state: " in line]
    state = json.loads(line.split("live state: ", 1)[1])
    assert state["max_connections"] == 77
    assert state["connections"] >= 1
    assert (state["status"], state["running"], state["waiting"]) == ("ready", 1, 0)
    assert 0 < state["kv_blocks_used"] <= state["kv_blocks_total"]
    launched.signal(signal.SIGTERM)
    assert launched.end()[0] == 0
