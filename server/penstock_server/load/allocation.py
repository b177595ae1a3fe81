"""Running out of memory while a shard starts is something that the user can change: it becomes a StartError."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock_server.base.errors import StartError
from penstock_server.network.out_of_memory import is_out_of_memory

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def allocating(
    what: str, allocate: Callable[Arguments, Result], *given: Arguments.args, **more: Arguments.kwargs
) -> Result:
    """Call what allocates `what`; raises StartError where there is no memory for it."""
    try:
        return allocate(*given, **more)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise StartError(
            f"not enough memory for {what}; free some, or use a smaller model or more shards"
        ) from None
