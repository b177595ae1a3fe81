"""LangChain's client for OpenAI's API: `use_langchain.py URL`. Writes what it got as JSON."""

import asyncio
import json
import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel

QUESTION = "What is the weather in Paris?"


class Place(BaseModel):
    """A place."""

    city: Literal["Paris", "Rome"]


def get_weather(city: str) -> str:
    """Get the current weather in a city."""
    return city


def main(url: str) -> None:
    chat = ChatOpenAI(
        base_url=f"{url}/v1", api_key="any", model="tgi", temperature=0, max_completion_tokens=40
    )
    whole = chat.invoke(QUESTION)
    call = chat.bind_tools([get_weather], tool_choice="get_weather").invoke(QUESTION).tool_calls[0]
    place = chat.with_structured_output(Place, method="json_schema").invoke(QUESTION)
    found = {
        "whole": whole.content,
        "tokens": whole.usage_metadata["output_tokens"] if whole.usage_metadata else 0,
        "streamed": "".join(str(chunk.content) for chunk in chat.stream(QUESTION)),
        "async": asyncio.run(chat.ainvoke(QUESTION)).content,
        "call": [call["name"], call["args"]],
        "place": place.model_dump() if isinstance(place, Place) else None,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
