"""Examples as the text and the tokens that the model sees.

Chats are rendered by the shipped template, so that training and serving cannot differ.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2
from tokenizers import Tokenizer

from demo.corpus.example import Example

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
_REPLY = re.compile(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


class Encoded(NamedTuple):
    """Token ids, and for each whether it is a target of training."""

    ids: list[int]
    learnt: list[bool]


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def render(example: Example) -> str:
    """The whole example as text, its last reply included."""
    if example.plain:
        return "".join(m["content"] for m in example.messages) + END_OF_TEXT
    return _template().render(messages=example.messages, tools=example.tools)


def render_prompt(example: Example) -> str:
    """A chat without its last reply, which is to come."""
    return _template().render(messages=example.messages[:-1], tools=example.tools, add_generation_prompt=True)


def _learnt_spans(example: Example, text: str) -> list[tuple[int, int]]:
    if example.plain:
        return [(len(example.messages[0]["content"]), len(text))]
    return [match.span(1) for match in _REPLY.finditer(text)]


def encode(tokenizer: Tokenizer, example: Example) -> Encoded:
    """The example as tokens; only tokens of replies are targets."""
    text = render(example).removesuffix("\n")
    encoding = tokenizer.encode(text)
    spans = _learnt_spans(example, text)
    learnt = [any(a <= start < b for a, b in spans) for start, _ in encoding.offsets]
    return Encoded(encoding.ids, learnt)
