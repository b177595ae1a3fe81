"""However it ends, nothing is left behind; and running requests may finish when it is asked to stop."""

import json
import signal
from pathlib import Path

import pytest
from e2e import faults
from e2e.clients import COMPLETE
from e2e.conftest import Launch
from e2e.launched import START_TIMEOUT_S, Launched, events, wait_until
from e2e.models import MAX_LEN
from e2e.oracle import SLACK

LONG = {"inputs": "x", "parameters": {"max_new_tokens": MAX_LEN - 2, "ignore_eos": True}}


GONE_S = 3.0 * SLACK


@pytest.fixture
def running(launch: Launch, model: Path, tmp_path: Path) -> Launched:
    return launch(f"--model-id={model}", "--num-shard=2", faults.hold_flag(tmp_path)).wait_until_serving()


def _is_clean(launched: Launched) -> bool:
    return not launched.children() and not list(launched.tmp.glob("penstock-*"))


def test_nothing_outlives_a_launcher_that_is_killed(running: Launched) -> None:
    # Two shards, the router, and the fork server.
    assert len(running.children()) == 4
    running.signal(signal.SIGKILL)
    wait_until(lambda: _is_clean(running), GONE_S)


def test_nothing_outlives_a_launcher_that_is_killed_while_it_loads(
    launch: Launch, model: Path, tmp_path: Path
) -> None:
    # While this file exists, no shard that starts gets ready.
    faults.hold_file(tmp_path).touch()
    launched = launch(f"--model-id={model}", "--num-shard=2", faults.hold_flag(tmp_path))
    wait_until(lambda: len(launched.children()) == 3, START_TIMEOUT_S)
    launched.signal(signal.SIGKILL)
    wait_until(lambda: not launched.children(), GONE_S)


def _ask_to_stop(launched: Launched, number: signal.Signals = signal.SIGTERM) -> None:
    """Returns when the server has taken notice."""
    launched.signal(number)
    wait_until(lambda: launched.get("/health")[0] == 503, 5.0 * SLACK)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_finish(running: Launched, number: signal.Signals) -> None:
    with faults.held_load(running, [LONG]) as load:
        _ask_to_stop(running, number)
    assert [record.end for record in load.finish()] == [COMPLETE]
    assert running.end()[0] == 0
    assert _is_clean(running)


def test_new_requests_during_a_drain_get_503_and_retry_after(running: Launched) -> None:
    with faults.held_load(running, [LONG]) as load:
        _ask_to_stop(running)
        with running.request("POST", "/generate", LONG) as refused:
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert json.loads(refused.read())["error_type"] == "shutting_down"
    assert [record.end for record in load.finish()] == [COMPLETE]
    assert running.end()[0] == 0


def test_the_end_of_the_grace_is_an_error_event_and_an_exit_code(launch: Launch, model: Path) -> None:
    # A step that takes longer than the grace: the stream cannot finish in time.
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    flags = (f"--fault=slow-on-token:{vocabulary['^']}:20", "--graceful-termination-timeout=1")
    running = launch(f"--model-id={model}", *flags).wait_until_serving()
    with running.request("POST", "/generate_stream", {**LONG, "inputs": "^"}) as response:
        running.signal(signal.SIGTERM)
        *_, last = events(response)
    assert json.loads(last)["error_type"] == "shutting_down"
    assert running.end()[0] == 3
    assert _is_clean(running)


def test_a_second_signal_stops_at_once(running: Launched) -> None:
    running.signal(signal.SIGTERM)
    running.signal(signal.SIGTERM)
    assert running.end()[0] in (0, 3)
    assert _is_clean(running)


def test_each_stage_of_the_start_is_timed(running: Launched) -> None:
    texts = [
        "model is in",
        "Shards are ready",
        "Router is ready",
        "Serving",
        "curl http://",
        "Ctrl-C to stop",
    ]
    places = [running.stderr.find(text) for text in texts]
    assert places == sorted(places)
    assert -1 not in places
