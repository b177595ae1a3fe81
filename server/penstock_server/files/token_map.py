"""Which tokens of two vocabularies are the same text: a draft model may have another vocabulary than the model.

Needs no torch.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.fields import read_json
from penstock_server.base.errors import StartError

# How vocabularies from bytes write those that are no printable character: as the characters from here on.
_FIRST_WRITTEN = 0x100
# The texts that SentencePiece writes for a space, and for a byte.
_SPACE, _BYTE = "\u2581", re.compile(r"<0x([0-9A-F]{2})>")


class TokenMap(NamedTuple):
    """From the tokens of a model to those of another vocabulary."""

    # For each token of the model, the token that is read in its place: the same text, or else the end of that text.
    read: dict[int, int]
    # The token that is read in the place of any other.
    unknown: int
    # The tokens of the model that have an equal, and these; no token is the equal of two.
    known: list[int]
    equal: list[int]


class _Token(NamedTuple):
    text: bytes
    # Not text, but what a template writes.
    is_special: bool = False
    # One of the 256 that spell what no other token does.
    is_byte: bool = False

    @property
    def meaning(self) -> tuple[bytes, bool]:
        return self.text, self.is_special


def map_tokens(model: Path, draft: Path, num_draft: int) -> TokenMap:
    """From the tokens of one tokenizer.json to those of another, of which a draft model has the first so many.

    Raises StartError where too few are the same.
    """
    theirs, mine = _tokens(model), _tokens(draft)
    numbers = {token.meaning: number for number, token in reversed(_in_order(mine)) if number < num_draft}
    known: dict[int, int] = {}
    for number, token in _in_order(theirs):
        equal = numbers.get(token.meaning)
        if equal is not None:
            known.setdefault(equal, number)
    if not known or 2 * len(known) < min(len(theirs), len(mine)):
        raise StartError(
            f"{draft} has {len(mine)} tokens, {model} {len(theirs)}, and only {len(known)} are in both; use a draft "
            "model whose vocabulary has more in common with that of the model"
        )
    unknown = _number_of_unknown(draft, num_draft)
    read = {number: _nearest(token, numbers, unknown) for number, token in theirs.items()}
    return TokenMap(read, unknown, list(known.values()), list(known))


def _in_order(tokens: Mapping[int, _Token]) -> list[tuple[int, _Token]]:
    """The tokens in order: of those with the same text, the one that spells it comes first."""
    return sorted(tokens.items(), key=lambda item: (item[1].is_byte, item[0]))


def _nearest(token: _Token, numbers: Mapping[tuple[bytes, bool], int], unknown: int) -> int:
    if token.meaning in numbers:
        return numbers[token.meaning]
    ends = (numbers.get((token.text[begin:], False)) for begin in range(len(token.text)))
    return next((number for number in ends if number is not None), unknown)


def _number_of_unknown(file: Path, limit: int) -> int:
    model = read_json(file)["model"]
    number = model.get("unk_id")
    if isinstance(model["vocab"], dict):
        number = model["vocab"].get(str(model.get("unk_token")))
    return number if isinstance(number, int) and 0 <= number < limit else 0


def _tokens(file: Path) -> dict[int, _Token]:
    """The tokens of a tokenizer.json by number; raises StartError where it does not say how they are spelled."""
    raw, texts = read_json(file), vocabulary_of(file)
    kind = raw["model"].get("type")
    if kind not in (None, "BPE", "Unigram"):
        raise StartError(
            f"{file}: its tokens are those of {kind}, and a draft model with another vocabulary than the model needs "
            "BPE or Unigram"
        )
    is_from_bytes = "ByteLevel" in {*_kinds(raw.get("decoder")), *_kinds(raw.get("pre_tokenizer"))}
    spell = _from_bytes if is_from_bytes else _from_pieces
    found = {number: spell(text) for number, text in texts.items() if number >= 0}
    for entry in filter(_is_token, _listed(raw.get("added_tokens"))):
        found[entry["id"]] = _Token(_encoded(entry["content"]), is_special=bool(entry.get("special")))
    return found


def _is_token(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
        return False
    return isinstance(entry.get("id"), int) and entry["id"] >= 0


def _listed(part: Any) -> list[Any]:
    return part if isinstance(part, list) else []


def _kinds(part: Any) -> Iterator[str]:
    """The kinds of a part of a tokenizer, and of those that it is a sequence of."""
    if isinstance(part, dict):
        yield str(part.get("type"))
        for inner in _listed(part.get("decoders")) + _listed(part.get("pretokenizers")):
            yield from _kinds(inner)


def _from_pieces(text: str) -> _Token:
    byte = _BYTE.fullmatch(text)
    if byte is not None:
        return _Token(bytes.fromhex(byte[1]), is_byte=True)
    return _Token(_encoded(text.replace(_SPACE, " ")))


def _from_bytes(text: str) -> _Token:
    written = [_WRITTEN.get(character) for character in text]
    known = [byte for byte in written if byte is not None]
    return _Token(bytes(known) if len(known) == len(text) else _encoded(text))


def _encoded(text: str) -> bytes:
    """In UTF-8, with halves of pairs, which JSON can write, as they are."""
    return text.encode("utf-8", "surrogatepass")


def _written() -> dict[str, int]:
    """The byte that each character stands for in vocabularies from bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    written = {chr(_FIRST_WRITTEN + place): byte for place, byte in enumerate(others)}
    return {**{chr(byte): byte for byte in printable}, **written}


_WRITTEN = _written()


def vocabulary_of(file: Path) -> dict[int, str]:
    """The tokens of a tokenizer as they are written there, by number, without those that were added."""
    model = read_json(file).get("model")
    vocabulary: Any = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        pairs = ((number, token) for token, number in vocabulary.items())
    elif isinstance(vocabulary, list):
        pairs = (
            (number, entry[0]) for number, entry in enumerate(vocabulary) if isinstance(entry, list) and entry
        )
    else:
        raise StartError(f"{file}: it has no vocabulary; download it again")
    return {number: str(token) for number, token in pairs if isinstance(number, int)}
