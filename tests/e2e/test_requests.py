"""The responses that a client gets from the whole system: launcher, router and one or two shards."""

import json
from pathlib import Path

import pytest
from e2e import faults
from e2e.conftest import Launch
from e2e.launched import Launched, events, wait_until
from e2e.models import MAX_LEN, greedy
from e2e.oracle import SLACK

PROMPTS = ["Once upon a time", "x", "Grüße, 世界!", "the same words " * 8]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_generate_equals_transformers(server: Launched, model: Path, prompt: str) -> None:
    ids, text = greedy(model, prompt, 24)
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 24, "details": True}}
    status, reply = server.post("/generate", body)
    assert status == 200, reply
    assert [token["id"] for token in reply["details"]["tokens"]] == ids
    assert reply["generated_text"] == text


def test_a_stream_gives_the_same_tokens_one_by_one(server: Launched, model: Path) -> None:
    ids, text = greedy(model, PROMPTS[0], 24)
    body = {"inputs": PROMPTS[0], "parameters": {"max_new_tokens": 24}}
    replies = [json.loads(data) for data in server.stream("/generate_stream", body)]
    assert [reply["token"]["id"] for reply in replies] == ids
    assert [reply["index"] for reply in replies] == list(range(1, len(ids) + 1))
    assert [reply["generated_text"] for reply in replies] == [None] * (len(ids) - 1) + [text]


def test_chat_answers_at_once_and_as_a_stream(server: Launched, model: Path) -> None:
    _, text = greedy(model, "user: hello\nassistant:", 16)
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 16, "temperature": 0}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    assert reply["choices"][0]["message"]["content"] == text
    *chunks, last = server.stream("/v1/chat/completions", {**body, "stream": True})
    assert last == "[DONE]"
    deltas = [choice["delta"] for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == text


def test_many_at_once_get_what_each_would_get_alone(server: Launched, model: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    prompts = [f"{prompt} {number}" for prompt in PROMPTS for number in range(3)]

    def ask(prompt: str) -> str:
        return str(
            server.post("/generate", {"inputs": prompt, "parameters": {"max_new_tokens": 12}})[1][
                "generated_text"
            ]
        )

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == [greedy(model, prompt, 12)[1] for prompt in prompts]


def test_the_rest_of_the_routes_answer(server: Launched, model: Path) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/metrics"):
        assert server.get(path)[0] == 200, path
    assert json.loads(server.get("/info")[1])["model_id"] == model.name
    assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == model.name
    assert server.post("/tokenize", {"inputs": "abc"})[1][1]["text"] == "b"


def test_a_prompt_past_the_limit_names_the_limit(server: Launched) -> None:
    status, reply = server.post("/generate", {"inputs": "x" * (MAX_LEN + 1)})
    assert (status, reply["error_type"]) == (422, "validation")
    assert str(MAX_LEN - 1) in reply["error"]
    assert str(MAX_LEN + 1) in reply["error"]


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/generate", b"{not json", 400),
        ("POST", "/generate", {"parameters": {}}, 422),
        ("POST", "/generate", {"inputs": ""}, 422),
        ("GET", "/no/such/route", None, 404),
        ("GET", "/generate", None, 405),
    ],
)
def test_wrong_requests_get_a_json_error(
    server: Launched, method: str, path: str, body: object, expected: int
) -> None:
    with server.request(method, path, body) as response:
        reply = json.loads(response.read())
    assert response.status == expected, reply
    assert reply["error"]
    assert reply["error_type"]


def test_clients_that_leave_free_their_slots(launch: Launch, model: Path, tmp_path: Path) -> None:
    """Nothing runs any more while the streams, had they gone on, would still be held in their middle."""
    server = launch(f"--model-id={model}", faults.hold_flag(tmp_path)).wait_until_serving()
    body = {"inputs": "x", "parameters": {"max_new_tokens": MAX_LEN - 2, "ignore_eos": True}}
    with faults.held(server):
        for _ in range(8):
            with server.request("POST", "/generate_stream", body) as response:
                next(events(response))
        wait_until(lambda: faults.num_requests(server) == 0, 5.0 * SLACK)
    assert server.post("/generate", {**body, "parameters": {"max_new_tokens": 4}})[0] == 200
