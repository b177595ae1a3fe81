"""Unit conversion with whole numbers."""

import random
import zlib
from typing import NamedTuple

from demo.corpus.example import Example, Split, asked, continued
from demo.corpus.phrasing import Phrasings, vary


class Conversion(NamedTuple):
    """One large unit is `factor` small ones; amounts up to `limit` are asked for."""

    large: str
    small: str
    factor: int
    limit: int


CONVERSIONS = (
    Conversion("kilometre", "metre", 1000, 999),
    Conversion("metre", "centimetre", 100, 999),
    Conversion("metre", "millimetre", 1000, 999),
    Conversion("centimetre", "millimetre", 10, 999),
    Conversion("kilogram", "gram", 1000, 999),
    Conversion("tonne", "kilogram", 1000, 999),
    Conversion("gram", "milligram", 1000, 999),
    Conversion("litre", "millilitre", 1000, 999),
    Conversion("hour", "minute", 60, 20),
    Conversion("minute", "second", 60, 20),
    Conversion("day", "hour", 24, 14),
    Conversion("week", "day", 7, 30),
    Conversion("year", "month", 12, 20),
    Conversion("foot", "inch", 12, 20),
    Conversion("dozen", "piece", 12, 12),
    Conversion("euro", "cent", 100, 999),
    Conversion("dollar", "cent", 100, 999),
    Conversion("kilobyte", "byte", 1000, 999),
    Conversion("megabyte", "kilobyte", 1000, 999),
    Conversion("gigabyte", "megabyte", 1000, 999),
)
_PLURALS = {"foot": "feet", "inch": "inches", "dozen": "dozen"}
QUESTIONS = Phrasings(
    train=(
        "how many {to} are (in|there in) {n} {unit}?",
        "convert {n} {unit} (to|into) {to}.",
        "(please convert|can you convert|could you convert) {n} {unit} to {to}?",
        "what is {n} {unit} in {to}?",
        "what's {n} {unit} in {to}?",
        "{n} {unit} in {to}",
        "{n} {unit} to {to}",
        "{n} {unit} = ? {to}",
        "how many {to} (is|are|make) {n} {unit}?",
        "{n} {unit} (is|are) how many {to}?",
        "(express|give|write) {n} {unit} in {to}.",
        "change {n} {unit} into {to}.",
        "how many {to} do {n} {unit} have?",
        "(tell me|I need) {n} {unit} in {to}.",
    ),
    held_out=(
        "turn {n} {unit} into {to}.",
        "could you tell me how many {to} are in {n} {unit}?",
        "if I have {n} {unit}, how many {to} is that?",
    ),
)
CELSIUS = Phrasings(
    train=(
        "what is {n} degrees Celsius in Fahrenheit?",
        "convert {n} degrees Celsius to Fahrenheit.",
        "{n} C in F",
        "{n} Celsius to Fahrenheit",
        "how many degrees Fahrenheit is {n} degrees Celsius?",
        "how warm is {n} Celsius in Fahrenheit?",
    ),
    held_out=("tell me what {n} degrees Celsius is in Fahrenheit.",),
)


def _plural(unit: str, count: int) -> str:
    return unit if count == 1 else _PLURALS.get(unit, unit + "s")


def _is_held_out(count: int, conversion: Conversion) -> bool:
    """Amounts are held out only for powers of ten; the other conversions are few, and trained on completely."""
    if conversion.factor % 10 or conversion.factor == 60:
        return False
    return zlib.crc32(f"{count}{conversion.large}{conversion.small}".encode()) % 20 == 0


def _amount(rng: random.Random, split: Split, conversion: Conversion) -> int:
    while True:
        limit = rng.choice((20, 99, conversion.limit))
        count = rng.randint(1, min(limit, conversion.limit))
        if conversion.limit < 100 or _is_held_out(count, conversion) == (split == "test"):
            return count


def conversion(rng: random.Random, split: Split) -> Example:
    """An amount of one unit in another."""
    it = rng.choice(CONVERSIONS)
    large, small = _amount(rng, split, it), 0
    small = large * it.factor
    down = f"{large} {_plural(it.large, large)}", f"{small} {_plural(it.small, small)}"
    (amount, unit), to = down[0].split(" "), _plural(it.small, 2)
    if rng.random() < 0.3:
        down = down[1], down[0]
        (amount, unit), to = down[0].split(" "), _plural(it.large, 2)
    question = QUESTIONS.pick(rng, split).format(n=amount, unit=unit, to=to)
    return asked("units", vary(rng, split, question), f"{down[0]} = {down[1]}.")


def temperature(rng: random.Random, split: Split) -> Example:
    """Degrees Celsius in Fahrenheit, in steps of five."""
    n = rng.randrange(-20, 105, 5)
    question = CELSIUS.pick(rng, split).format(n=n)
    answer = f"{n} degrees Celsius is {n * 9 // 5 + 32} degrees Fahrenheit."
    return asked("units", vary(rng, split, question), answer)


def make(rng: random.Random, split: Split) -> Example:
    """A conversion, now and then as plain text."""
    example = temperature(rng, split) if rng.random() < 0.06 else conversion(rng, split)
    if rng.random() < 0.15:
        question, answer = (m["content"] for m in example.messages)
        return continued("plain text", question, " " + answer)
    return example
