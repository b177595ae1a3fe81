"""The matrices of all experts of a layer, and what is made of them once."""

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

Parts = TypeVar("Parts")
Made = TypeVar("Made")


class ExpertMatrices(tuple[Parts, ...], Generic[Parts]):
    """For every expert its parts, or its only matrix, in order."""

    # In the `__dict__` of an instance: a tuple has no slots of its own.
    _made: dict[Hashable, Any]

    def shared(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make`, called once per key: a table of where the matrices are is the same in every step."""
        made = self.__dict__.setdefault("_made", {})
        if key not in made:
            made[key] = make()
        found: Made = made[key]
        return found
