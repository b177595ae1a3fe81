"""Tools, end to end on the demo model: chosen, called, streamed, required, and answered."""

import json
import re
from typing import Any

import pytest
from e2e.launched import Launched

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "description": "Set an alarm",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
            "required": ["hour"],
        },
    },
}
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}


def body(**fields: Any) -> dict[str, Any]:
    asked = {"messages": [QUESTION], "tools": [WEATHER, TIME], "max_tokens": 100, "temperature": 0}
    return {**asked, **fields}


def choice(server: Launched, request: dict[str, Any]) -> dict[str, Any]:
    status, reply = server.post("/v1/chat/completions", request)
    assert status == 200, reply
    first: dict[str, Any] = reply["choices"][0]
    return first


def check_weather_call(message: dict[str, Any], finish_reason: str) -> None:
    assert finish_reason == "tool_calls"
    assert message["content"] is None
    [call] = message["tool_calls"]
    assert re.fullmatch("call_[0-9a-f]{24}", call["id"])
    assert call["type"] == "function"
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


def collected(chunks: list[str]) -> tuple[dict[str, Any], str]:
    """The message that the deltas of a stream add up to, and how it ended."""
    message: dict[str, Any] = {"content": None, "tool_calls": []}
    finish_reason = ""
    for chunk in chunks:
        for part in json.loads(chunk)["choices"]:
            delta = part["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for piece in delta.get("tool_calls", []):
                if "id" in piece:
                    assert piece["index"] == len(message["tool_calls"])
                    message["tool_calls"].append(piece)
                else:
                    function = message["tool_calls"][piece["index"]]["function"]
                    function["arguments"] += piece["function"]["arguments"]
            finish_reason = part["finish_reason"] or finish_reason
    return message, finish_reason


def test_the_model_calls_the_tool_that_fits(demo: Launched) -> None:
    answer = choice(demo, body())
    check_weather_call(answer["message"], answer["finish_reason"])


def test_a_stream_sends_the_call_in_pieces(demo: Launched) -> None:
    *chunks, done = demo.stream("/v1/chat/completions", body(stream=True))
    assert done == "[DONE]"
    check_weather_call(*collected(chunks))
    pieces = [chunk for chunk in chunks if '"tool_calls":[' in chunk]
    assert len(pieces) > 2, "the arguments come in more than one piece"


def test_a_call_that_a_stop_string_cuts_is_not_one_to_be_made(demo: Launched) -> None:
    whole = choice(demo, body(stop="ris"))
    assert whole["finish_reason"] == "stop"
    streamed, reason = collected(demo.stream("/v1/chat/completions", body(stop="ris", stream=True))[:-1])
    assert reason == "stop"
    for message in (whole["message"], streamed):
        [call] = message["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        assert re.fullmatch(r'\{\s*"city":\s*"Pa', call["function"]["arguments"]), (
            "what was written, as it is"
        )
    beyond = choice(demo, body(stop="</tool_call>"))
    check_weather_call(beyond["message"], beyond["finish_reason"])


def test_the_result_of_a_call_leads_to_an_answer(demo: Launched) -> None:
    call = choice(demo, body())["message"]
    result = {"temperature": 21, "condition": "sunny"}
    tool = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": json.dumps(result)}
    answer = choice(demo, body(messages=[QUESTION, call, tool]))
    assert answer["finish_reason"] == "stop"
    assert "tool_calls" not in answer["message"]
    assert "21" in answer["message"]["content"]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_made_even_when_nothing_asks_for_one(demo: Launched, parallel: bool) -> None:
    hello = [{"role": "user", "content": "Hello!"}]
    asked = body(messages=hello, tool_choice="required", parallel_tool_calls=parallel, temperature=1, seed=3)
    answer = choice(demo, asked)
    calls = answer["message"]["tool_calls"]
    assert len(calls) == 1 if not parallel else calls
    assert answer["message"]["content"] is None
    assert {call["function"]["name"] for call in calls} <= {"get_weather", "set_alarm"}
    if answer["finish_reason"] == "tool_calls":
        for call in calls:
            json.loads(call["function"]["arguments"])


def test_a_named_function_is_called_with_arguments_that_obey(demo: Launched) -> None:
    named = {"type": "function", "function": {"name": "set_alarm"}}
    answer = choice(demo, body(tool_choice=named, n=1, temperature=1, seed=4))
    [call] = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "set_alarm"
    assert 0 <= json.loads(call["function"]["arguments"])["hour"] <= 23


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "set_alarm"}}])
def test_every_chunk_of_a_required_call_carries_it(demo: Launched, tool_choice: Any) -> None:
    request = body(tool_choice=tool_choice, temperature=1, seed=4, parallel_tool_calls=False, stream=True)
    *chunks, done = demo.stream("/v1/chat/completions", request)
    assert done == "[DONE]"
    first = json.loads(chunks[0])["choices"][0]["delta"]
    assert (first["role"], first["content"]) == ("assistant", None)
    assert first["tool_calls"][0]["id"]
    assert first["tool_calls"][0]["function"]["name"] in ("get_weather", "set_alarm")
    deltas = [part["delta"] for chunk in chunks for part in json.loads(chunk)["choices"]]
    assert not any("role" in delta for delta in deltas[1:])
    assert all(delta["tool_calls"][0]["index"] == 0 and delta.get("content") is None for delta in deltas)
    message, reason = collected(chunks)
    assert (reason, message["content"]) == ("tool_calls", None)
    json.loads(message["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("tool_choice", ["required", {"type": "function", "function": {"name": "set_alarm"}}])
def test_a_required_call_beside_a_format_is_a_call(demo: Launched, tool_choice: Any) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = choice(demo, body(tool_choice=tool_choice, response_format=asked, parallel_tool_calls=False))
    assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
    [call] = answer["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"city" if call["function"]["name"] == "get_weather" else "hour"}


def test_an_answer_without_a_call_has_the_format(demo: Launched) -> None:
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    hello = [{"role": "user", "content": "Hello!"}]
    message = choice(demo, body(messages=hello, response_format=asked))["message"]
    if message["content"] is None:
        assert {call["function"]["name"] for call in message["tool_calls"]} <= {"get_weather", "set_alarm"}
    else:
        assert isinstance(json.loads(message["content"])["answer"], int)


def test_without_tools_or_with_none_the_reply_is_text(demo: Launched) -> None:
    answer = choice(demo, body(tool_choice="none"))
    assert isinstance(answer["message"]["content"], str)
    assert answer["finish_reason"] in ("stop", "length")


def test_tools_that_cannot_be_enforced_are_refused_only_where_they_must_be(demo: Launched) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "array", "uniqueItems": True}}}
    function: dict[str, Any] = {"name": "f", "parameters": parameters}
    tool = {"type": "function", "function": function}
    status, reply = demo.post("/v1/chat/completions", body(tools=[tool], tool_choice="required"))
    assert (status, reply["error"]["param"]) == (400, "tools[0].function.parameters")
    assert "uniqueItems" in reply["error"]["message"]
    assert choice(demo, body(tools=[tool]))["finish_reason"] in ("stop", "tool_calls", "length")
    strict = {"type": "function", "function": {**function, "strict": True}}
    assert demo.post("/v1/chat/completions", body(tools=[strict]))[0] == 400


def test_only_the_allowed_tools_are_called(demo: Launched) -> None:
    function = {"type": "function", "function": {"name": "set_alarm"}}
    for mode in ("required", "auto"):
        choice_of = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function]}}
        message = choice(demo, body(tool_choice=choice_of, temperature=1, seed=5))["message"]
        names = {call["function"]["name"] for call in message.get("tool_calls", [])}
        assert names <= {"set_alarm"}
        assert names or mode == "auto"


LARK = """start: INT SP OPERATOR SP INT
SP: " "
OPERATOR: "+" | "-"
%import common.INT"""


@pytest.mark.parametrize(
    ("syntax", "definition", "pattern"),
    [
        ("regex", r'[a-z]{3}="\d\d"', r'[a-z]{3}="\d\d"'),
        ("lark", LARK, r"\d+ [+-] \d+"),
    ],
)
def test_the_input_of_a_custom_tool_obeys_its_grammar(
    demo: Launched, syntax: str, definition: str, pattern: str
) -> None:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    tool = {"type": "custom", "custom": {"name": "put", "description": "Put it", "format": grammar}}
    required = body(tools=[tool, WEATHER], tool_choice={"type": "custom", "custom": {"name": "put"}}, seed=6)
    [call] = choice(demo, required)["message"]["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "put")
    assert re.fullmatch(pattern, call["custom"]["input"])
    chunks = demo.stream("/v1/chat/completions", {**required, "stream": True})[:-1]
    deltas = [json.loads(chunk)["choices"][0]["delta"] for chunk in chunks]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", [])]
    assert "".join(piece["custom"]["input"] for piece in pieces) == call["custom"]["input"]
    assert pieces[0]["type"] == "custom"
    assert len(pieces) == len(deltas)


def test_a_grammar_of_a_custom_tool_that_cannot_be_used_is_refused_by_its_place(demo: Launched) -> None:
    for syntax, definition, reason in [
        ("regex", "(", "unclosed group"),
        ("lark", "start: missing", "missing"),
        ("lark", '%ignore " "\nstart: "a"', "%import"),
    ]:
        grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        tool = {"type": "custom", "custom": {"name": "put", "format": grammar}}
        status, reply = demo.post("/v1/chat/completions", body(tools=[tool], tool_choice="required"))
        assert (status, reply["error"]["param"]) == (400, "tools[0].custom.format"), reply
        assert reason in reply["error"]["message"]
