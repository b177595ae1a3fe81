"""LiteLLM, by OpenAI's API: `use_litellm.py URL`. Writes what it got as JSON."""

import asyncio
import json
import os
import sys
from typing import Any

# It would ask the network for the prices of models.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]


def main(url: str) -> None:
    asked: dict[str, Any] = {
        "model": "openai/tgi",
        "api_base": f"{url}/v1",
        "api_key": "any",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 40,
    }
    whole = litellm.completion(**asked)
    chunks = litellm.completion(**asked, stream=True)
    found = {
        "whole": whole.choices[0].message.content,
        "tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "async": asyncio.run(litellm.acompletion(**asked)).choices[0].message.content,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
