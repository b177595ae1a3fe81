"""Tokens drafted, in the whole system: the answers of a server that drafts none, and what is told of drafts."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting_model import counting_model, eagle_head, medusa_heads
from e2e import faults
from e2e.conftest import Launch
from e2e.launched import Launched, events
from e2e.oracle import SLACK

# With three tokens that are far likelier than all others, the last two tokens soon occur again.
FEW = {"logit_bias": {"66": 60, "67": 60, "68": 60}}
BODIES: list[dict[str, Any]] = [
    {"prompt": "the same words " * 6, "max_tokens": 48, "temperature": 0},
    {"prompt": "abc", "max_tokens": 64, "temperature": 0, **FEW},
    {"prompt": "abc", "max_tokens": 64, "temperature": 0.8, "seed": 4, "n": 2, "logprobs": 2, **FEW},
    {"prompt": "abc", "max_tokens": 64, "temperature": 1.1, "seed": 5, "frequency_penalty": 0.2, **FEW},
    {"prompt": "abc", "max_tokens": 64, "temperature": 0.9, "seed": 6, "stop": ["CDB", "DDD"], **FEW},
    {"prompt": "x", "max_tokens": 24, "temperature": 0, "response_format": {"type": "json_object"}},
    {"prompt": "abc", "max_tokens": 48, "temperature": 0.7, "seed": 7, "guided_regex": "[A-E]{48}", **FEW},
]


@pytest.fixture(scope="module")
def plain(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("run"), f"--model-id={model}", "--dtype=float32") as launched:
        yield launched.wait_until_serving()


@pytest.fixture(scope="module", params=["ngram", "suffix", "draft"])
def drafting(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched]:
    # A model that drafts for itself is always right, but for what rounding of sums changes.
    others = {
        "ngram": ("--endpoint=tonic",),
        "suffix": ("--endpoint=grpcio",),
        "draft": (f"--draft-model={model}", "--num-shard=2", "--poison-cache"),
    }
    kind = str(request.param)
    tmp = tmp_path_factory.mktemp("run")
    flags = (f"--model-id={model}", "--dtype=float32", f"--speculation={kind}", *others[kind])
    with Launched(tmp, *flags, "--max-restarts=9", faults.hold_flag(tmp)) as launched:
        yield launched.wait_until_serving()


def complete(server: Launched, body: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The choices and the usage; numbers are rounded as other sums may be."""
    status, reply = server.post("/v1/completions", body)
    assert status == 200, reply
    for choice in reply["choices"]:
        if choice["logprobs"]:
            choice["logprobs"] = (
                choice["logprobs"]["tokens"],
                [round(value, 2) for value in choice["logprobs"]["token_logprobs"]],
            )
    return reply["choices"], reply["usage"]


def test_usage_and_metrics_tell_of_drafts(drafting: Launched) -> None:
    """The first test of a server: drafts are made until it knows how long steps take with them and without."""
    _, usage = complete(drafting, BODIES[1])
    details = usage["completion_tokens_details"]
    assert 0 < details["accepted_prediction_tokens"] < usage["completion_tokens"]
    assert details["rejected_prediction_tokens"] >= 0
    body = {**BODIES[1], "stream": True, "stream_options": {"include_usage": True}}
    with drafting.request("POST", "/v1/completions", body) as response:
        chunks = [json.loads(event) for event in events(response) if event != "[DONE]"]
    streamed = chunks[-1]["usage"].get("completion_tokens_details", dict.fromkeys(details, 0))
    metrics = drafting.get("/metrics")[1].decode()
    counts = {
        line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line and line[0] != "#"
    }
    assert counts["tgi_speculation_drafted_tokens"] >= sum(details.values()) + sum(streamed.values())
    told = sum(each["accepted_prediction_tokens"] for each in (details, streamed))
    assert counts["tgi_speculation_accepted_tokens"] >= told


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_answers_are_those_without_drafts(drafting: Launched, plain: Launched, number: int) -> None:
    expected, plain_usage = complete(plain, BODIES[number])
    choices, usage = complete(drafting, BODIES[number])
    assert choices == expected
    assert usage["completion_tokens"] == plain_usage["completion_tokens"]
    assert "completion_tokens_details" not in plain_usage


def test_a_stream_goes_on_when_the_shard_dies_between_drafts(drafting: Launched, plain: Launched) -> None:
    body = {**BODIES[1], "max_tokens": 200, "ignore_eos": True}
    expected, _ = complete(plain, body)
    assert interrupted(drafting, body) == expected[0]["text"]


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_a_stream_goes_on_when_the_shard_dies_between_drafts_of_heads(
    kind: str, saved_model: Callable[..., Any], launch: Launch, tmp_path: Path
) -> None:
    model = counting_model(saved_model, tmp_path / "model")
    (medusa_heads if kind == "medusa" else eagle_head)(model, model / kind)
    flags = (f"--model-id={model}", "--dtype=float32", f"--speculation={kind}", faults.hold_flag(tmp_path))
    server = launch(*flags).wait_until_serving()
    body = {"prompt": "the", "max_tokens": 150, "ignore_eos": True, "temperature": 0.7, "seed": 3}
    expected, usage = complete(server, body)
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 20
    assert interrupted(server, body) == expected[0]["text"]


def interrupted(server: Launched, body: dict[str, Any]) -> str:
    """The text of a stream whose shard is killed in the middle of it."""
    hold = faults.hold_file(server.tmp)
    hold.touch()
    text = ""
    # Nothing comes while the shards start again.
    patience_s = faults.RESTART_S * SLACK
    with server.request("POST", "/v1/completions", {**body, "stream": True}, patience_s) as response:
        for number, event in enumerate(events(response)):
            # Long before it would be held.
            if number == 10:
                faults.kill(faults.shard(server, 0))
                hold.unlink()
            if event != "[DONE]":
                assert "choices" in event, f"{event}\n{server.stderr}"
                text += json.loads(event)["choices"][0]["text"]
    return text
