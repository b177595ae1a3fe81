"""The sampling defaults of a model, from generation_config.json, or from config.json where older models have them.

The tokens that end a sequence are read by `config_json`, whether or not these defaults are used.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from penstock_server.architectures.fields import read_json
from penstock_server.base.errors import StartError

GENERATION_CONFIG = "generation_config.json"


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
        """Those that the model gives."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Range:
    """The same limits as for the parameter of a request."""

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
    raw = {name: value for name, value in read_json(path).items() if value is not None}
    found: dict[str, Any] = {name: _number(path, raw, name) for name in _RANGES}
    return GenerationDefaults(do_sample=_do_sample(path, raw), top_k=_top_k(path, raw), **found)


def _number(path: Path, raw: dict[str, Any], name: str) -> float | None:
    if name not in raw:
        return None
    value, allowed = raw[name], _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not allowed.holds(value):
        raise _error(path, name, value, str(allowed))
    return float(value)


def _top_k(path: Path, raw: dict[str, Any]) -> int | None:
    value = raw.get("top_k")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value not in _TOP_K:
        raise _error(path, "top_k", value, f"a whole number from 0 to {_TOP_K[-1]}")
    return max(value, 0)


def _do_sample(path: Path, raw: dict[str, Any]) -> bool | None:
    value = raw.get("do_sample")
    if value is not None and not isinstance(value, bool):
        raise _error(path, "do_sample", value, "true or false")
    return value


def _error(path: Path, name: str, value: Any, expected: str) -> StartError:
    return StartError(
        f"{path}: {name} is {repr(value)[:100]}; expected {expected}; "
        "correct the file or start with --generation-config none"
    )
