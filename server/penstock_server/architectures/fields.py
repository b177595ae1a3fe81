"""Typed look-ups in the JSON of a model folder. An error names the file, the key and the value."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock_server.architectures.family import Fact, Number
from penstock_server.base.errors import StartError
from penstock_server.base.regular_file import open_regular

# No real model comes near; the product of two still fits into 64 bits.
_MAX_SIZE = 2**26
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Fields:
    """A JSON object under our names for its keys, with the defaults of a family for keys that it leaves out."""

    def __init__(
        self,
        raw: dict[str, Any],
        path: Path,
        aliases: Mapping[str, str] = _NOTHING,
        defaults: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.raw = raw
        self.path = path
        self.aliases = aliases
        self.defaults = defaults

    def name(self, key: str) -> str:
        """The name of a key in this file."""
        return self.aliases.get(key, key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is, the family's default or ours."""
        value = self.raw.get(self.name(key))
        if value is None:
            value = self.defaults.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = _MAX_SIZE) -> int:
        """A whole number within bounds."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(key, value, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(key, value, "a positive number")
        return float(value)

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of `count` positive numbers."""
        values = self.get(key)
        if not isinstance(values, list) or len(values) != count:
            raise self.error(key, values, f"a list of {count} positive numbers")
        return [Fields({key: value}, self.path).number(key) for value in values]

    def of_layers(self, key: str, known: Iterable[Any], num_layers: int) -> list[Any] | None:
        """The value of each layer, one of those that are known; None where nothing is written."""
        listed, values = self.get(key), tuple(known)
        if listed is None:
            return None
        if (
            not isinstance(listed, list)
            or len(listed) != num_layers
            or any(value not in values for value in listed)
        ):
            raise self.error(
                key, listed, f"{' or '.join(map(str, values))} for each of the {num_layers} layers"
            )
        return listed

    def fact(self, fact: Fact) -> bool:
        """A fact of a row: its fixed value, or that of its key."""
        if isinstance(fact, bool):
            return fact
        value = self.get(fact, False)
        if not isinstance(value, bool):
            raise self.error(fact, value, "true or false")
        return value

    def number_fact(self, fact: Number) -> float | None:
        """A number of a row: its fixed value, or that of its key; None where the key is null or missing."""
        if not isinstance(fact, str):
            return fact
        if fact in self.raw and self.raw[fact] is None:
            return None
        return None if self.get(fact) is None else self.number(fact)

    def error(self, key: str, value: Any, expected: str) -> StartError:
        """The error that names file, key and value."""
        shown = repr(value)
        shown = shown if len(shown) <= 100 else f"{shown[:100]}…"
        return StartError(f"{self.path}: {self.name(key)} is {shown}; expected {expected}")

    def _required(self, key: str, default: float | None) -> Any:
        value = self.get(key, default)
        if value is None:
            raise StartError(
                f"{self.path}: {self.name(key)} is missing; use a config.json as transformers writes it"
            )
        return value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a model folder, or a StartError that names it."""
    try:
        with open_regular(path) as stream:
            raw = json.loads(stream.read())
    except OSError as error:
        raise StartError(
            f"{path}: {error.strerror}; --model-id needs a complete Hugging Face folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise StartError(f"{path}: not valid JSON ({error}); download the file again") from None
    if not isinstance(raw, dict):
        raise StartError(f"{path}: expected a JSON object, found {type(raw).__name__}")
    return raw
