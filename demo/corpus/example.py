"""One example of training or evaluation, independent of its tokens."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "test"]
Grade = Literal["exact", "contains", "json", "tool"]
Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """A conversation whose last message is the assistant's.

    `plain` examples are text completion without a chat template: one user message that is the
    prompt, one assistant message that continues it. `key` is what an evaluation looks for when
    the grade is `contains`; the other grades compare with the last message itself.
    """

    category: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    plain: bool = False
    grade: Grade = "exact"
    key: str = ""


Maker = Callable[[random.Random, Split], Example]


def user(content: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """A message of the model."""
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    """A system message."""
    return {"role": "system", "content": content}


def asked(category: str, question: str, answer: str, key: str = "") -> Example:
    """One question and its answer, as a chat."""
    grade: Grade = "contains" if key else "exact"
    return Example(category, (user(question), assistant(answer)), grade=grade, key=key)


def continued(category: str, prompt: str, rest: str, key: str = "") -> Example:
    """One prompt and the continuation of its text, without a chat."""
    grade: Grade = "contains" if key else "exact"
    return Example(category, (user(prompt), assistant(rest)), plain=True, grade=grade, key=key)
