"""The mixture: every kind of example in its proportion, from one seed.

The same seed gives the same text on every machine, which a test holds.
"""

import random
from collections.abc import Iterator

from demo.corpus import arithmetic, chat, extraction, penstock, stories, tools, units, world
from demo.corpus.example import Example, Maker, Split, system

MIXTURE: dict[Maker, float] = {
    arithmetic.make: 0.32,
    stories.make: 0.05,
    units.make: 0.04,
    world.make: 0.17,
    penstock.make: 0.08,
    chat.make: 0.11,
    extraction.make: 0.24,
    tools.make: 0.15,
}


def draw(rng: random.Random, split: Split) -> Example:
    """One example of the mixture."""
    return rng.choices(list(MIXTURE), list(MIXTURE.values()))[0](rng, split)


def _with_scene(rng: random.Random, split: Split, example: Example) -> Example:
    """The example under a system prompt that changes nothing."""
    if example.plain or example.messages[0]["role"] == "system":
        return example
    messages = (system(chat.scene(rng, split)), *example.messages)
    return Example(example.category, messages, example.tools, grade=example.grade, key=example.key)


def conversation(rng: random.Random, split: Split) -> Example:
    """Several unrelated exchanges in one chat, up to some hundred tokens."""
    count = rng.choice((2, 2, 3, 3, 4, 5, 6, 8, 12))
    parts: list[Example] = []
    while len(parts) < count:
        part = draw(rng, split)
        if not part.plain and not part.tools and part.messages[0]["role"] == "user":
            parts.append(part)
    messages = tuple(message for part in parts for message in part.messages)
    return Example("multi-turn", messages, grade=parts[-1].grade, key=parts[-1].key)


def examples(seed: int, split: Split = "train") -> Iterator[Example]:
    """An endless stream of examples; every assistant message is to be learnt."""
    rng = random.Random(f"{seed} {split}")
    while True:
        example = conversation(rng, split) if rng.random() < 0.03 else draw(rng, split)
        yield _with_scene(rng, split, example) if rng.random() < 0.08 else example
