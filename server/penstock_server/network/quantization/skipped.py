"""Lists of modules that a checkpoint leaves in 16 bits."""

import fnmatch
from collections.abc import Iterable

from penstock_server.architectures.fields import Fields
from penstock_server.network.quantization.scheme import Source

# The head may be named where there is none: it is the embedding then.
_ALWAYS_THERE = ("lm_head",)


class Skipped:
    """The modules under some keys: whole names, ends or parts of names between dots, or with wildcards."""

    def __init__(self, settings: Fields, keys: Iterable[str]) -> None:
        self._settings = settings
        self._names: dict[str, list[str]] = {}
        for key in keys:
            found = settings.get(key, [])
            if not isinstance(found, list) or not all(isinstance(name, str) and name for name in found):
                raise settings.error(key, found, "a list of names of modules")
            self._names[key] = found

    def refuse(self, source: Source) -> None:
        """Raise StartError if a matrix that is not stored in 16 bits is in a list."""
        for key, names in self._names.items():
            name = next((name for name in names if is_named(source.name, name)), None)
            if name is not None:
                raise self._settings.error(key, name, f"{source.name}.weight in 16 bits then")

    def check(self, modules: Iterable[str]) -> None:
        """Raise StartError for a list of which no name is that of a module: it was made for another model."""
        known = (*modules, *_ALWAYS_THERE)
        for key, names in self._names.items():
            if names and not any(is_named(module, name) for name in names for module in known):
                raise self._settings.error(key, names, "names of modules of this model")


def is_named(module: str, pattern: str) -> bool:
    """Whether a pattern is the name of a module, of one that it is in, or the last parts of its name."""
    if "*" in pattern:
        return fnmatch.fnmatchcase(module, pattern) or fnmatch.fnmatchcase(module, f"{pattern}.*")
    return f".{pattern}." in f".{module}."
