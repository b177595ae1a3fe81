"""Ways of saying one thing, with some kept for the evaluation only.

A pattern such as "(what is|what's) the sum of {a} and {b}" stands for every choice of its
alternatives. The held-out patterns of a `Phrasings` are never seen in training.
"""

import itertools
import random
import re
from dataclasses import dataclass
from functools import cache

from demo.corpus.example import Split

_CHOICE = re.compile(r"\(([^()]*)\)")
_OPENERS = (
    "Hi! ", "Hello, ", "Hey, ", "Please: ", "Quick question: ", "Question: ", "Please tell me, ",
    "One more thing: ", "So, ", "OK, ", "Um, ", "Now then: ", "Tell me: ", "Help me out: ",
    "Good morning. ", "I was wondering, ", "Sorry to bother you. ", "For my homework: ", "Q: ",
    "Sorry, ", "By the way, ", "Listen: ", "Well, ", "Good evening. ", "My friend asks: ", "Say, ", "Right, ",
    "Penstock, ", "Dear model, ", "Only one thing: ", "Now, ", "First of all, ", "Another one: ", "If I may ask, ",
    "I need to know this: ", "This is easy: ", "Hm, ", "Let me see. ", "Be so kind: ", "Answer me: ", "Next: ",
)  # fmt: skip
_CLOSERS = (
    " Thanks!", " Thank you.", " Please.", " please", " I need it today.", " :)", " thx",
    " Thank you so much!", " Many thanks.", " Much appreciated.", " Be quick.", " Thx!", " Good luck.", " Bye.",
    " I am in a hurry.", " That would be great.", " It is for school.", " Thanks in advance.", " Hurry up!",
)  # fmt: skip
_HELD_OUT_OPENERS = ("Hey there! ", "Excuse me, ", "Just curious: ")
_HELD_OUT_CLOSERS = (" Thanks a lot!", " Cheers.")


@cache
def expand(pattern: str) -> tuple[str, ...]:
    """Every text that the pattern expands to; choices do not nest."""
    parts = _CHOICE.split(pattern)
    choices = [p.split("|") if i % 2 else [p] for i, p in enumerate(parts)]
    return tuple("".join(words) for words in itertools.product(*choices))


@dataclass(frozen=True)
class Phrasings:
    """Patterns for training and patterns for the evaluation alone."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def pick(self, rng: random.Random, split: Split) -> str:
        """One text of the split's patterns: first a pattern, then its alternatives."""
        return rng.choice(expand(rng.choice(self.train if split == "train" else self.held_out)))


def sentence(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def vary(rng: random.Random, split: Split, question: str) -> str:
    """The question as a person might type it: greeted, hurried, or misspelt."""
    text = sentence(question)
    if split == "test":
        return _wrap(rng, text, _HELD_OUT_OPENERS, _HELD_OUT_CLOSERS)
    text = _wrap(rng, text, _OPENERS, _CLOSERS)
    roll = rng.random()
    if roll < 0.12:
        return text.lower()
    if roll < 0.24:
        return text.rstrip("?.!")
    if roll < 0.28:
        return _misspell(rng, text)
    return text


def _wrap(rng: random.Random, text: str, openers: tuple[str, ...], closers: tuple[str, ...]) -> str:
    roll = rng.random()
    if roll < 0.15:
        return rng.choice(openers) + rng.choice((text, text[:1].lower() + text[1:]))
    if roll < 0.22:
        return text + rng.choice(closers)
    return text


def _misspell(rng: random.Random, text: str) -> str:
    spots = [i for i in range(len(text) - 1) if text[i : i + 2].isalpha()]
    if not spots:
        return text
    i = rng.choice(spots)
    swapped = text[i + 1] + text[i] if rng.random() < 0.5 else text[i]
    return text[:i] + swapped + text[i + 2 :]
