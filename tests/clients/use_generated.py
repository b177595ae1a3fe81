"""A client that openapi-python-client made from the server's document: `use_generated.py URL FOLDER`, where the folder
has the package `penstock_client`. Writes what it got as JSON.
"""

import importlib
import json
import sys
from typing import Any

QUESTION = "What is the weather in Paris?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}


def call(client: Any, operation: str, model: str, body: dict[str, Any]) -> Any:
    """The response of an operation to a body, which the generated model reads first."""
    models = importlib.import_module("penstock_client.models")
    api = importlib.import_module(f"penstock_client.api.default.{operation}")
    return api.sync_detailed(client=client, body=getattr(models, model).from_dict(body))


def main(url: str, folder: str) -> None:
    sys.path.insert(0, folder)
    client = importlib.import_module("penstock_client").Client(base_url=url)
    messages = [{"role": "user", "content": QUESTION}]
    chat = {"messages": messages, "temperature": 0, "max_tokens": 40}
    whole = call(client, "post_v1_chat_completions", "ChatRequest", chat).parsed
    called = {**chat, "tools": [TOOL], "tool_choice": "required"}
    [choice] = call(client, "post_v1_chat_completions", "ChatRequest", called).parsed.choices
    refused = call(client, "post_v1_chat_completions", "ChatRequest", {**chat, "top_p": 2})
    response = {"input": QUESTION, "temperature": 0, "max_output_tokens": 40}
    message = {**chat, "thinking": {"type": "adaptive"}}
    generate = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}}
    function = choice.message.tool_calls[0].function
    found = {
        "whole": whole.choices[0].message.content,
        "tokens": whole.usage.completion_tokens,
        "call": [function.name, json.loads(function.arguments)],
        "refusal": [int(refused.status_code), type(refused.parsed).__name__, refused.parsed.error.param],
        "response": call(client, "post_v1_responses", "ResponsesRequest", response)
        .parsed.output[0]
        .content[0]
        .text,
        "message": call(client, "post_v1_messages", "MessagesRequest", message).parsed.content[0].text,
        "generated": call(client, "post_generate", "GenerateRequest", generate).parsed.generated_text,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
