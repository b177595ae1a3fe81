"""A synthetic byte-level BPE vocabulary of a large model's size: words, numbers, signs, other scripts."""

import random
from collections.abc import Iterator

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

NUM_TOKENS = 128_000
_LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
_WEIGHTS = [12, 9, 8, 8, 7, 7, 6, 6, 6, 4, 4, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1]
_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \n\t"
# Greek to Cyrillic, Hebrew to Arabic, kana, common Chinese characters, Hangul.
_SCRIPTS = [(0x370, 0x52F), (0x5D0, 0x6FF), (0x3041, 0x30FF), (0x4E00, 0x7FFF), (0xAC00, 0xD7A3)]


def tokenizer() -> Tokenizer:
    """The same vocabulary every time. It has no merges, because the benchmarks use only the vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = dict.fromkeys(alphabet)
    words = _words(random.Random(128))
    while len(pieces) < NUM_TOKENS:
        pieces.setdefault(_spelled(next(words)))
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def _words(draw: random.Random) -> Iterator[str]:
    while True:
        kind = draw.random()
        if kind < 0.7:
            word = "".join(draw.choices(_LETTERS, _WEIGHTS, k=draw.randint(2, 10)))
            yield draw.choice(["", " "]) + draw.choice([word, word, word.capitalize(), word.upper()])
        elif kind < 0.8:
            yield draw.choice(["", " "]) + "".join(draw.choices(_SIGNS, k=draw.randint(2, 5)))
        elif kind < 0.82:
            yield str(draw.randrange(10 ** draw.randint(1, 3)))
        else:
            first, last = draw.choice(_SCRIPTS)
            yield "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 4)))


def _spelled(word: str) -> str:
    """The spelling in byte-level vocabularies: one printable character for each byte."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return str(level.pre_tokenize_str(word)[0][0])
