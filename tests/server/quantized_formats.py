"""The seam of the tests of formats: what a format's file has in a table, from which models are made once."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from quantized_models import Packer, Quantized, healthy, maker


class Format(NamedTuple):
    """Models of one format."""

    models: Mapping[str, tuple[Packer, dict[str, Any]]]
    # The names of the models that are also tried on several shards.
    divided: tuple[str, ...]
    # The sizes of the model that is packed, where they are not the usual ones.
    sizes: Mapping[str, int] = MappingProxyType({})
    # Writes the other files of its tool into the folder of a model of that name.
    complete: Callable[[str, Path], None] = lambda _name, _folder: None


# A model of a format by its name, made once for all files of tests.
Made = Callable[[Format, str], Quantized]


def making(saved_model: Callable[..., Any], new_folder: Callable[[str], Path]) -> Made:
    """A function that makes each model when it is asked for."""
    makers: dict[int, Callable[[str], Quantized]] = {}
    complete: set[tuple[int, str]] = set()

    def make(of: Format, name: str) -> Quantized:
        key = id(of.models)
        if key not in makers:
            makers[key] = maker(dict(of.models), healthy(saved_model, **of.sizes), new_folder("quantized"))
        found = makers[key](name)
        if (key, name) not in complete:
            complete.add((key, name))
            of.complete(name, found.folder)
        return found

    return make
