"""Notes whose fields exist once: they teach to read keys and values instead of knowing them."""

import random

from demo.corpus import names, words
from demo.corpus.example import Split
from demo.corpus.phrasing import sentence

FIELDS = tuple(
    """address amount animal author brand bread bus capital category code company cost country course date
    deadline department distance dish doctor drink duration film floor flight fruit game gate genre grade
    height hotel island language length level manager material member model month number origin owner page
    party patient pet planet player position project rating reason region river room route school score
    season seat shape shop song speed sport state station status street student subject table target team
    teacher title topic total town tree type user vehicle version village volume winner year zone""".split()
)
_CLAUSES = (
    "the {k} is {v}", "{k}: {v}", "{k} = {v}", "{k} is {v}", "{v} is the {k}", "{v} as {k}", "a {k} of {v}",
    "{k} {v}", "with {v} for the {k}", '{k} "{v}"',
)  # fmt: skip
_JOINTS = (", ", "; ", ". ", "\n", " and ", " | ")


def _value(rng: random.Random, split: Split) -> str | int:
    makers = (words.ordinary, names.first_name, names.place, names.invented, names.full_name)
    if rng.random() < 0.3:
        return rng.randrange(10 ** rng.randint(1, 4))
    return rng.choice(makers)(rng, split)


def draw(rng: random.Random, split: Split) -> tuple[str, dict[str, str | int]]:
    """A note and its fields."""
    values = {key: _value(rng, split) for key in rng.sample(FIELDS, rng.randint(2, 5))}
    clause, joint = rng.choice(_CLAUSES), rng.choice(_JOINTS)
    clauses = [clause.format(k=key, v=value) for key, value in values.items()]
    if joint == ". ":
        clauses = [sentence(text) for text in clauses]
    return joint.join(clauses) + rng.choice((".", ".", "")), values
