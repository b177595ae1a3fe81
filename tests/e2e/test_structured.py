"""Outputs that are constrained: they obey, in every way to ask for them, and hostile grammars harm nobody."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e.launched import Launched
from e2e.oracle import SLACK

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ASKED = [{"role": "user", "content": "Give me a person as JSON."}]


def check_person(text: str) -> None:
    person = json.loads(text)
    assert list(person) == ["name", "age", "tags"]
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 20
    assert 0 <= person["age"] <= 130
    assert 1 <= len(person["tags"]) <= 3
    assert set(person["tags"]) <= {"a", "b"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": ASKED, "max_tokens": 120, "seed": 5, **fields}


def contents(server: Launched, body: dict[str, Any]) -> list[str]:
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"stop"}
    return [choice["message"]["content"] for choice in reply["choices"]]


FORMATS = [
    {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}},
    {"type": "json_object", "value": SCHEMA},
    {"type": "json", "value": json.dumps(SCHEMA)},
]


@pytest.mark.parametrize("response_format", FORMATS, ids=["openai", "huggingface_hub", "tgi"])
def test_a_schema_is_obeyed_by_every_choice(demo: Launched, response_format: dict[str, Any]) -> None:
    texts = contents(demo, chat(response_format=response_format, n=2, temperature=1.5))
    assert len(texts) == 2
    for text in texts:
        check_person(text)


def test_a_stream_is_the_same_text_in_pieces(demo: Launched) -> None:
    body = chat(response_format=FORMATS[0], logprobs=True, top_logprobs=2)
    [whole] = contents(demo, body)
    *chunks, done = demo.stream("/v1/chat/completions", {**body, "stream": True})
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == whole
    tokens = [token for choice in choices for token in (choice["logprobs"] or {}).get("content", [])]
    assert "".join(token["token"] for token in tokens) == whole
    check_person(whole)


def test_any_object_is_an_object(demo: Launched) -> None:
    asked = [{"role": "user", "content": "Extract name and age as JSON: Anna is 31 years old."}]
    body = chat(response_format={"type": "json_object"}, temperature=0, messages=asked)
    [text] = contents(demo, body)
    assert set(json.loads(text)) == {"name", "age"}


# The schema in the documentation of TGI: it has no `type`.
ANIMALS = {
    "properties": {
        "location": {"type": "string", "maxLength": 20},
        "animals_seen": {"type": "integer", "minimum": 1, "maximum": 5},
        "animals": {"type": "array", "items": {"enum": ["dog", "cat"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["location", "animals_seen", "animals"],
}


@pytest.mark.parametrize("temperature", [None, 1.5])
def test_a_schema_of_properties_gives_an_object(demo: Launched, temperature: float | None) -> None:
    grammar = {"type": "json", "value": ANIMALS}
    parameters = {"grammar": grammar, "max_new_tokens": 200, "seed": 3, "temperature": temperature}
    status, reply = demo.post("/generate", {"inputs": "I saw a puppy.", "parameters": parameters})
    assert status == 200, reply
    asked = {"type": "json_schema", "json_schema": {"name": "animals", "schema": ANIMALS}}
    texts = [reply["generated_text"]]
    for response_format in (grammar, asked):
        texts += contents(
            demo, chat(response_format=response_format, temperature=temperature, max_tokens=200)
        )
    for text in texts:
        assert set(json.loads(text)) >= set(ANIMALS["required"])


@pytest.mark.parametrize("expression", ["[A-F]{3}-[0-9]{4}", "^(yes|no)$", "a{5,8}b"])
def test_a_regular_expression_is_matched(demo: Launched, expression: str) -> None:
    grammar = {"type": "regex", "value": expression}
    parameters = {"grammar": grammar, "max_new_tokens": 100, "details": True, "do_sample": True, "seed": 1}
    status, reply = demo.post("/generate", {"inputs": "Say it: ", "parameters": parameters})
    assert status == 200, reply
    assert reply["details"]["finish_reason"] == "eos_token"
    assert re.fullmatch(expression, reply["generated_text"])


def test_a_lark_grammar_is_followed(demo: Launched) -> None:
    grammar = 'start: "[" pair ("," pair)? "]"\npair: /[a-z]/ ":" /[0-9]/'
    body = {"prompt": "x", "max_tokens": 60, "response_format": {"type": "grammar", "value": grammar}}
    status, reply = demo.post("/v1/completions", body)
    assert status == 200, reply
    assert re.fullmatch(r"\[[a-z]:\d(,[a-z]:\d)?\]", reply["choices"][0]["text"])


@pytest.mark.parametrize("rule", ['"a" start', '"a"{1000000}'])
def test_a_text_that_is_forced_beyond_the_limits_is_refused_before_it_begins(
    demo: Launched, rule: str
) -> None:
    body = chat(response_format={"type": "grammar", "value": f"start: {rule}"})
    status, reply = demo.post("/v1/chat/completions", body)
    assert status == 400, reply
    reason = "it forces a text that is too long or has no end"
    assert reply["error"]["message"].endswith(f"`response_format` cannot be used: {reason}")


def test_a_schema_that_is_not_supported_is_refused_with_its_keyword(demo: Launched) -> None:
    schema = {"type": "array", "uniqueItems": True}
    grammar = {"type": "json", "value": schema}
    status, reply = demo.post("/generate", {"inputs": "x", "parameters": {"grammar": grammar}})
    assert (status, reply["error_type"]) == (422, "grammar")
    assert "uniqueItems" in reply["error"]
    body = chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
    status, reply = demo.post("/v1/chat/completions", body)
    assert (status, reply["error"]["param"]) == (400, "response_format")
    assert "uniqueItems" in reply["error"]["message"]


def _chain(length: int) -> dict[str, Any]:
    definitions = {f"d{n}": {"properties": {"x": {"$ref": f"#/$defs/d{n + 1}"}}} for n in range(length)}
    return {"$defs": {**definitions, f"d{length}": True}, "$ref": "#/$defs/d0"}


HOSTILE = {
    "nested repetition": {"type": "regex", "value": "(a+)+$"},
    "long repetition": {"type": "regex", "value": "a{1,100000}"},
    "repeated repetition": {"type": "regex", "value": "((a{1,1000}){1,1000}){1,1000}b"},
    "doubling states": {"type": "regex", "value": "(a|b)*a(a|b){200}c"},
    "deep": {"type": "json", "value": '{"items":' * 1000 + "{}" + "}" * 1000},
    "deep by references": {"type": "json", "value": _chain(4000)},
    "wide": {"type": "json", "value": {"enum": [f"value {n}" for n in range(10_000)]}},
    "wide with objects": {"type": "json", "value": {"enum": [{"n": n} for n in range(10_000)]}},
}


def _recursive(count: int) -> dict[str, Any]:
    lists = [{"type": "array", "items": {"$ref": "#/$defs/any"}} for _ in range(count)]
    return {"$defs": {"any": {"anyOf": lists}}, "$ref": "#/$defs/any"}


def test_alternatives_that_contain_themselves_work_or_are_refused(demo: Launched) -> None:
    def ask(schema: dict[str, Any]) -> tuple[int, Any]:
        grammar = {"type": "json", "value": schema}
        return demo.post(
            "/generate", {"inputs": "x", "parameters": {"grammar": grammar, "max_new_tokens": 4}}
        )

    status, reply = ask(_recursive(400))
    assert (status, reply["error_type"]) == (422, "grammar")
    assert "at most 100 entries" in reply["error"]
    assert ask(_recursive(20))[0] == 200


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_delays_nobody(demo: Launched, name: str) -> None:
    bystander = {"inputs": "What is Penstock?", "parameters": {"max_new_tokens": 8}}
    hostile = {"inputs": "x", "parameters": {"grammar": HOSTILE[name], "max_new_tokens": 20}}
    demo.post("/generate", bystander)
    with ThreadPoolExecutor(1) as pool:
        attacking = pool.submit(demo.post, "/generate", hostile)
        slowest, is_over = 0.0, False
        while not is_over:
            is_over = attacking.done()
            started = time.monotonic()
            assert demo.post("/generate", bystander)[0] == 200
            slowest = max(slowest, time.monotonic() - started)
    status, reply = attacking.result()
    assert status in (200, 422), reply
    assert slowest < 2.0 * SLACK
    assert demo.get("/health/ready")[0] == 200
