"""Ollama's own client: `use_ollama.py URL`. Writes what it got as JSON."""

import asyncio
import json
import sys
from typing import Any

import ollama

MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = {"temperature": 0, "num_predict": 40}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}


def get_weather(city: str) -> str:
    """Get the current weather in a city.

    Args:
        city: Name of the city.
    """
    return city


def refusal(client: ollama.Client) -> list[Any]:
    try:
        client.chat("some-other-model", MESSAGES)
    except ollama.ResponseError as error:
        return [error.status_code, error.error]
    return []


def main(url: str) -> None:
    client = ollama.Client(url)
    name = client.list().models[0].model or ""
    whole = client.chat(name, MESSAGES, options=GREEDY)
    chunks = list(client.chat(name, MESSAGES, options=GREEDY, stream=True))
    raw = client.generate(name, "Once upon a time", raw=True, options=GREEDY)
    pieces = client.generate(name, "Once upon a time", raw=True, options=GREEDY, stream=True)
    shown = client.show(name)
    calls = client.chat(name, MESSAGES, tools=[get_weather], options=GREEDY).message.tool_calls or []
    found = {
        "name": name,
        "whole": whole.message.content,
        "streamed": "".join(chunk.message.content or "" for chunk in chunks),
        "async": asyncio.run(ollama.AsyncClient(url).chat(name, MESSAGES, options=GREEDY)).message.content,
        "ends": [whole.done_reason, chunks[-1].done_reason, chunks[-1].done, chunks[0].done],
        "counts": [whole.prompt_eval_count, whole.eval_count],
        "durations": [whole.total_duration, whole.prompt_eval_duration, whole.eval_duration],
        "raw": raw.response,
        "raw_streamed": "".join(piece.response or "" for piece in pieces),
        "place": client.chat(name, MESSAGES, format=SCHEMA, options=GREEDY).message.content,
        "calls": [[call.function.name, dict(call.function.arguments)] for call in calls],
        "context_length": (shown.modelinfo or {}).get(
            f"{(shown.modelinfo or {}).get('general.architecture')}.context_length"
        ),
        "capabilities": shown.capabilities,
        "loaded": [model.model for model in client.ps().models],
        "refusal": refusal(client),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
