"""Reasoning that is limited to so many tokens, through the whole system: two ranks, streams, choices, formats."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.launched import Launched
from e2e.models import make_model
from tokenizers import Tokenizer

pytestmark = pytest.mark.timeout(300)

MARKERS = ("<think>", "</think>")
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}<think>{# </think> #}"
BUDGET = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("model"), markers=MARKERS)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    flags = (f"--model-id={folder}", "--num-shard=2", "--enable-tokenizer-info-endpoint")
    with Launched(tmp_path_factory.mktemp("run"), *flags) as launched:
        yield launched.wait_until_serving()


def ask(server: Launched, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "Once upon a time"}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "return_token_ids": True, **fields}
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    return reply["choices"]


def close_of(folder: Path) -> int:
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    return ids["</think>"]


def test_reasoning_is_as_it_was_up_to_its_budget(server: Launched, folder: Path) -> None:
    close = close_of(folder)
    free = ask(server)[0]["token_ids"]
    assert len(free) == 40
    assert close not in free[: BUDGET + 1], "the model thinks for longer"
    for choice in ask(server, thinking_token_budget=BUDGET, n=2):
        ids = choice["token_ids"]
        assert ids[: BUDGET + 1] == [*free[:BUDGET], close]
        assert len(ids) > BUDGET + 1, "the reply goes on"
        assert choice["message"]["content"]
    assert ask(server, thinking_token_budget=0)[0]["token_ids"][0] == close
    assert ask(server, thinking_token_budget=1000)[0]["token_ids"] == free
    drawn = ask(server, thinking_token_budget=BUDGET, temperature=1.5, seed=3)[0]["token_ids"]
    assert close in drawn[: BUDGET + 1]


def test_limited_reasoning_streams_and_obeys_a_format(server: Launched, folder: Path) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [7]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    choice = ask(server, thinking_token_budget=BUDGET, response_format=asked)[0]
    assert choice["token_ids"][BUDGET] == close_of(folder)
    assert json.loads(choice["message"]["content"]) == {"n": 7}
    assert choice["matched_stop"] == Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id("</s>")
    messages = [{"role": "user", "content": "Once upon a time"}]
    body = {"messages": messages, "max_tokens": 40, "temperature": 0, "stream": True}
    body |= {"thinking_token_budget": BUDGET, "response_format": asked}
    chunks = [json.loads(data)["choices"][0] for data in server.stream("/v1/chat/completions", body)[:-1]]
    text = {
        name: "".join(chunk["delta"].get(name) or "" for chunk in chunks)
        for name in ("content", "reasoning_content")
    }
    assert json.loads(text["content"]) == {"n": 7}
    assert text["reasoning_content"] == (choice["message"].get("reasoning_content") or "")


def test_the_settings_of_the_tokenizer_are_told(server: Launched) -> None:
    status, told = server.get("/tokenizer_info")
    assert status == 200
    settings = json.loads(told)
    assert settings["chat_template"] == TEMPLATE
    assert settings["eos_token"] == "</s>"
