"""The sampling defaults of a model, from generation_config.json, or from config.json where older models have them.

The tokens that end a sequence are read by `config_json`, whether or not these defaults are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from penstock_server.architectures.fields import read_json
from penstock_server.base.errors import StartError

GENERATION_CONFIG = "generation_config.json"
_OVERRIDE = "--override-generation-config"


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values for what a request leaves out; None where the model gives none."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None

    def given(self) -> dict[str, Any]:
        """The parameters that the model gives."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Range:
    """The limits of a value, the same as for the parameter of a request."""

    low: float
    high: float
    excludes_low: bool = False

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.excludes_low and value == self.low)

    def __str__(self) -> str:
        between = f"above {self.low:g} and" if self.excludes_low else f"from {self.low:g} to"
        return f"a number {between} {'at most ' if self.excludes_low else ''}{self.high:g}"


_RANGES = {
    "temperature": _Range(0, 100),
    "top_p": _Range(0, 1, excludes_low=True),
    "min_p": _Range(0, 1),
    "typical_p": _Range(0, 1, excludes_low=True),
    "repetition_penalty": _Range(0.01, 100),
}
# Some files write -1 for "all".
_TOP_K = range(-1, 2**31)


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """The defaults of a model folder; raises StartError with file, field, value and limit."""
    path = folder / GENERATION_CONFIG
    if not path.exists():
        path = folder / "config.json"
    return _Source(path, "correct the file or start with --generation-config none").defaults(read_json(path))


def override_generation_defaults(own: GenerationDefaults, override: Mapping[str, Any]) -> GenerationDefaults:
    """The model's defaults with other values; raises StartError for a field that is not known or out of range."""
    known = [field.name for field in fields(GenerationDefaults)]
    for name in override:
        if name not in known:
            hint = "; see --default-max-tokens" if name in ("max_new_tokens", "max_length") else ""
            raise StartError(
                f"{_OVERRIDE}: {name} is none of the defaults of sampling ({', '.join(known)}){hint}"
            )
    given = _Source(_OVERRIDE, "correct the flag").defaults(override)
    # null removes the model's value.
    return replace(own, **{name: getattr(given, name) for name in override})


class _Source(NamedTuple):
    """Where values come from, and what to do about a wrong one."""

    name: Path | str
    advice: str

    def defaults(self, values: Mapping[str, Any]) -> GenerationDefaults:
        raw = {name: value for name, value in values.items() if value is not None}
        found: dict[str, Any] = {name: self._number(raw, name) for name in _RANGES}
        return GenerationDefaults(do_sample=self._do_sample(raw), top_k=self._top_k(raw), **found)

    def _number(self, raw: dict[str, Any], name: str) -> float | None:
        if name not in raw:
            return None
        value, allowed = raw[name], _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not allowed.holds(value):
            raise self._error(name, value, str(allowed))
        return float(value)

    def _top_k(self, raw: dict[str, Any]) -> int | None:
        value = raw.get("top_k")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value not in _TOP_K:
            raise self._error("top_k", value, f"a whole number from 0 to {_TOP_K[-1]}")
        return max(value, 0)

    def _do_sample(self, raw: dict[str, Any]) -> bool | None:
        value = raw.get("do_sample")
        if value is not None and not isinstance(value, bool):
            raise self._error("do_sample", value, "true or false")
        return value

    def _error(self, name: str, value: Any, expected: str) -> StartError:
        return StartError(f"{self.name}: {name} is {repr(value)[:100]}; expected {expected}; {self.advice}")
