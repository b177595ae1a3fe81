"""Every object and event of ours against the types of the official `openai` and `anthropic` packages, strictly: no
required field is missing, none has another type or a value that is not listed. Beside it, the cases of the compliance
suite of Open Responses that need neither stored state nor images.
"""

import json
from functools import cache
from typing import Any

import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from e2e.launched import Launched
from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

QUESTION = "What is the weather in Paris?"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather in a city",
    "parameters": PARAMETERS,
}
DATE = {"syntax": "regex", "definition": r"2\d{3}-[01]\d"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

CHATS: dict[str, dict[str, Any]] = {
    "text": {},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "n": 2, "temperature": 1, "seed": 1},
    "tier": {"service_tier": "flex"},
    "call": {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "length": {"max_tokens": 2},
}
CUSTOM_CHAT = {
    "tools": [{"type": "custom", "custom": {"name": "day", "format": {"type": "grammar", "grammar": DATE}}}],
    "tool_choice": {"type": "custom", "custom": {"name": "day"}},
}
RESPONSES: dict[str, dict[str, Any]] = {
    "text": {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "user": "u",
    },
    "logprobs": {
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    },
    "call": {"tools": [{"type": "function", **WEATHER}], "tool_choice": "required"},
    "custom": {
        "tools": [{"type": "custom", "name": "day", "format": {"type": "grammar", **DATE}}],
        "tool_choice": {"type": "custom", "name": "day"},
    },
    "allowed": {
        "tools": [{"type": "function", **WEATHER}, {"type": "function", "name": "now"}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
    },
    "schema": {
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}, "verbosity": "low"}
    },
    "length": {"max_output_tokens": 2, "truncation": "auto", "max_tool_calls": 3, "service_tier": "auto"},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "text": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
    "call": {
        "tools": [{"name": "get_weather", "input_schema": PARAMETERS}],
        "tool_choice": {"type": "any"},
    },
    "schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "length": {"max_tokens": 2},
}
EDITED = {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def check(kind: Any, value: Any) -> None:
    adapter(kind).validate_json(json.dumps(value), strict=True)


def ask(server: Launched, path: str, body: dict[str, Any]) -> Any:
    status, answer = server.post(path, body)
    assert status == 200, answer
    return answer


def events(server: Launched, path: str, body: dict[str, Any]) -> list[Any]:
    lines = server.stream(path, {**body, "stream": True})
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": "tgi", "messages": messages, "max_tokens": 60, "temperature": 0, **fields}


@pytest.mark.parametrize("case", CHATS)
def test_chat_completions(demo: Launched, case: str) -> None:
    check(ChatCompletion, ask(demo, "/v1/chat/completions", chat(CHATS[case])))
    with_usage = {**CHATS[case], "stream_options": {"include_usage": True}}
    chunks = events(demo, "/v1/chat/completions", chat(with_usage))
    assert len(chunks) > 2
    for chunk in chunks:
        check(ChatCompletionChunk, chunk)


def test_a_call_of_a_custom_tool(demo: Launched) -> None:
    """The types of chunks have no custom tools, so only the whole answer is compared."""
    answer = ask(demo, "/v1/chat/completions", chat(CUSTOM_CHAT))
    check(ChatCompletion, answer)
    assert answer["choices"][0]["message"]["tool_calls"][0]["type"] == "custom"


def test_completions_models_and_errors(demo: Launched) -> None:
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 4, "logprobs": 2}
    check(Completion, ask(demo, "/v1/completions", body))
    for chunk in events(demo, "/v1/completions", body):
        # The type is that of whole answers; in chunks, OpenAI's finish reason is null until the last one, too.
        reason = chunk["choices"][0]["finish_reason"]
        chunk["choices"][0]["finish_reason"] = reason or "stop"
        check(Completion, chunk)
    status, models = demo.get("/v1/models")
    assert status == 200
    check(Model, json.loads(models)["data"][0])
    status, refused = demo.post("/v1/chat/completions", chat({"top_p": 2}))
    assert status in (400, 422)
    check(ErrorObject, refused["error"])
    status, refused = demo.post("/v1/messages", {"messages": []})
    assert status in (400, 422)
    check(ErrorResponse, refused)


def response(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "tgi", "input": QUESTION, "max_output_tokens": 60, "temperature": 0, **fields}


@pytest.mark.parametrize("case", RESPONSES)
def test_responses(demo: Launched, case: str) -> None:
    whole = ask(demo, "/v1/responses", response(RESPONSES[case]))
    check(Response, whole)
    streamed = events(demo, "/v1/responses", response(RESPONSES[case]))
    for event in streamed:
        check(ResponseStreamEvent, event)
    last = streamed[-1]["response"]
    assert (last["status"], len(last["output"])) == (whole["status"], len(whole["output"]))
    for field in ("tools", "tool_choice", "text", "reasoning", "metadata", "truncation", "usage"):
        assert last[field] == whole[field] or field == "usage", field


def message(fields: dict[str, Any]) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    return {"model": "tgi", "messages": messages, "max_tokens": 60, "temperature": 0, **fields}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(demo: Launched, case: str) -> None:
    check(Message, ask(demo, "/v1/messages", message(MESSAGES[case])))
    for event in events(demo, "/v1/messages", message(MESSAGES[case])):
        # `ping` keeps a connection open; clients leave it out before they look at types.
        if event["type"] != "ping":
            check(RawMessageStreamEvent, event)
    check(MessageTokensCount, ask(demo, "/v1/messages/count_tokens", message(MESSAGES[case])))


def test_messages_with_edits_of_the_context(demo: Launched) -> None:
    whole = ask(demo, "/v1/messages", message(EDITED))
    check(BetaMessage, whole)
    assert whole["context_management"] == {"applied_edits": []}
    for event in events(demo, "/v1/messages", message(EDITED)):
        if event["type"] != "ping":
            check(BetaRawMessageStreamEvent, event)


# The fields that the specification of Open Responses requires beyond the types of the package.
REQUIRED = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]
FUNCTION = {"type", "name", "description", "parameters", "strict"}
TOOL: dict[str, Any] = {"type": "function", **WEATHER}


def said(role: str, text: str) -> dict[str, str]:
    return {"type": "message", "role": role, "content": text}


COMPLIANCE: dict[str, dict[str, Any]] = {
    "basic-response": {"input": [said("user", "Say hello in exactly 3 words.")]},
    "streaming-response": {"input": [said("user", "Count from 1 to 5.")]},
    "system-prompt": {"input": [said("system", "You are a pirate."), said("user", "Say hello.")]},
    "tool-calling": {"input": [said("user", QUESTION)], "tools": [TOOL]},
    "multi-turn": {
        "input": [
            said("user", "My name is Alice."),
            said("assistant", "Hello Alice! Nice to meet you."),
            said("user", "What is my name?"),
        ]
    },
}


def check_resource(answer: dict[str, Any]) -> None:
    check(Response, answer)
    assert set(REQUIRED) <= set(answer), set(REQUIRED) - set(answer)
    assert answer["status"] == "completed"
    assert isinstance(answer["completed_at"], int)
    assert answer["output"]
    assert all(set(tool) >= FUNCTION for tool in answer["tools"])


@pytest.mark.parametrize("case", COMPLIANCE)
def test_open_responses(demo: Launched, case: str) -> None:
    body = {"model": "tgi", "temperature": 0, **COMPLIANCE[case]}
    if case == "streaming-response":
        streamed = events(demo, "/v1/responses", body)
        for event in streamed:
            check(ResponseStreamEvent, event)
        check_resource(streamed[-1]["response"])
        return
    answer = ask(demo, "/v1/responses", body)
    check_resource(answer)
    if case == "tool-calling":
        assert "function_call" in [item["type"] for item in answer["output"]]


def test_open_responses_with_the_result_of_a_call(demo: Launched) -> None:
    choice = {"type": "function", "name": "get_weather"}
    first = ask(demo, "/v1/responses", response({"tools": [TOOL], "tool_choice": choice}))
    check_resource(first)
    [call] = first["output"]
    output = json.dumps({"temperature": 21, "condition": "sunny"})
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": output}
    history = [said("user", QUESTION), call, result]
    second = ask(demo, "/v1/responses", response({"input": history, "tools": [TOOL]}))
    check_resource(second)
    assert "21" in second["output"][0]["content"][0]["text"]
