"""Names and values to copy: invented ones for training, others for the evaluation.

Training sees syllables in endless combination, so that it learns to copy rather than to know.
"""

import random

from demo.corpus.example import Split

_STARTS = [
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "qu",
    "r",
    "s",
    "sh",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
    "th",
    "sk",
    "x",
    "bl",
    "cr",
    "y",
]
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "ea", "ia", "io", "ou", "ee"]
_ENDS = ["", "", "", "n", "r", "l", "s", "m", "k", "t", "nd", "rt", "ck", "ng", "x", "d"]
_KNOWN = [
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Eva",
    "Frank",
    "Grace",
    "Hugo",
    "Ida",
    "Jack",
    "Karen",
    "Leo",
    "Maria",
    "Nina",
    "Otto",
    "Paula",
    "Robert",
    "Sarah",
    "Tom",
    "Ursula",
    "Victor",
    "Wendy",
    "Alice",
    "Bob",
    "Peter",
    "Laura",
    "James",
    "Linda",
    "Michael",
    "Emma",
]
_HELD_OUT_FIRST = [
    "Oliver",
    "Fatima",
    "Yusuf",
    "Chloe",
    "Mateo",
    "Ingrid",
    "Haruto",
    "Priya",
    "Kwame",
    "Svetlana",
    "Diego",
    "Zanele",
    "Bjorn",
    "Amira",
    "Lucas",
    "Mei",
    "Tariq",
    "Helena",
    "Andre",
    "Noor",
    "Gustavo",
    "Freya",
    "Ravi",
    "Simone",
    "Olga",
    "Viktor",
    "Imani",
    "Pedro",
]
_HELD_OUT_LAST = [
    "Okafor",
    "Lindqvist",
    "Moreau",
    "Tanaka",
    "Hernandez",
    "Novak",
    "Schmidt",
    "Abadi",
    "Kowalski",
    "Mbeki",
    "Rossi",
    "Andersen",
    "Petrov",
    "Silva",
    "Haddad",
    "Nguyen",
    "Brandt",
    "Costa",
    "Ferreira",
    "Yamamoto",
]
_HELD_OUT_PLACES = [
    "Utrecht",
    "Salzburg",
    "Nagoya",
    "Porto",
    "Leipzig",
    "Tampere",
    "Gdansk",
    "Marseille",
    "Oaxaca",
    "Bergen",
    "Lyon",
    "Turin",
    "Valencia",
    "Durban",
    "Mysore",
    "Tromso",
    "Split",
    "Cusco",
    "Adelaide",
    "Halifax",
]
_PLACES = [
    "Paris",
    "London",
    "Berlin",
    "Madrid",
    "Rome",
    "Oslo",
    "Tokyo",
    "Cairo",
    "Lima",
    "Vienna",
    "Boston",
    "Chicago",
    "Hamburg",
    "Munich",
    "Milan",
    "Geneva",
    "Zurich",
    "Seattle",
    "Dublin",
    "Prague",
]


def _syllables(rng: random.Random, count: int) -> str:
    parts = (rng.choice(_STARTS) + rng.choice(_VOWELS) + rng.choice(_ENDS) for _ in range(count))
    return "".join(parts).capitalize()


def invented(rng: random.Random, split: Split) -> str:
    """A word that means nothing; the evaluation's are longer than most."""
    return _syllables(rng, rng.choices((1, 2, 3), (1, 4, 2))[0] if split == "train" else 2)


def first_name(rng: random.Random, split: Split) -> str:
    """A given name."""
    if split == "test":
        return rng.choice(_HELD_OUT_FIRST)
    return rng.choice(_KNOWN) if rng.random() < 0.3 else invented(rng, split)


def full_name(rng: random.Random, split: Split) -> str:
    """A given name and a family name."""
    if split == "test":
        return f"{rng.choice(_HELD_OUT_FIRST)} {rng.choice(_HELD_OUT_LAST)}"
    return f"{first_name(rng, split)} {invented(rng, split)}"


def place(rng: random.Random, split: Split) -> str:
    """A town."""
    if split == "test":
        return rng.choice(_HELD_OUT_PLACES)
    return rng.choice(_PLACES) if rng.random() < 0.3 else invented(rng, split)
