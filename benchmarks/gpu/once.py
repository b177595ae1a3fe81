"""Something costly that several measurements share: made when the first of them needs it, or failed once for all."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Once(Generic[T]):
    """The result of `make`; after a failure every further call fails at once."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._error: Exception | None = None

    def __call__(self) -> T:
        if self._error is not None:
            raise RuntimeError(f"as before: {self._error}")
        if not self._made:
            try:
                self._made.append(self._make())
            except Exception as error:
                self._error = error
                raise
        return self._made[0]

    @property
    def made(self) -> list[T]:
        """The result in a list, which is empty until the result is made."""
        return self._made
