"""When a device has too little memory for a step, its requests fail and the shard continues, on all ranks alike.

If a rank runs out of memory in the middle of a forward pass, the others would wait for ever in sums that it never
reaches. So it takes part in the remaining sums with zeros; then all ranks compare, before any result is used. That
is one exchange of a number over gloo, in steps that compute prompts only: a step of decodes needs little, and the same
that all before it needed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from penstock_server.base.errors import StepOutOfMemory
from penstock_server.network.distributed import Group
from penstock_server.network.out_of_memory import is_out_of_memory


class _Sum(NamedTuple):
    """One sum over the ranks in a forward pass: its shape, in which one size is the number of tokens."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: torch.dtype


class MemoryPact:
    """Lets all ranks know whether a pass had enough memory on each. The first pass shows which sums a pass makes."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self._group = group
        self._device = device
        self._sums: list[_Sum] | None = None

    def run(self, compute: Callable[[], torch.Tensor], num_tokens: int) -> torch.Tensor:
        """The hidden states of a pass over `num_tokens`; raises StepOutOfMemory on all ranks if it ran out on one."""
        made = self._group.summed = []
        hidden = self._try(compute)
        self._group.summed = None
        # After the handler: while the error exists, it keeps what the pass had allocated.
        if hidden is None:
            self._take_part(len(made), num_tokens)
        elif self._sums is None:
            self._sums = _learn(made, num_tokens)
        everyone = self._group.gather_numbers(int(hidden is not None))
        if hidden is None or (0,) in everyone:
            raise StepOutOfMemory("a rank has no memory for this step")
        return hidden

    def _try(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor | None:
        try:
            return compute()
        except (MemoryError, RuntimeError) as error:
            if self._sums is None or not is_out_of_memory(error):
                raise
            return None

    def _take_part(self, num_made: int, num_tokens: int) -> None:
        """Take part in the sums that this rank did not reach."""
        assert self._sums is not None, "without them the error was raised"
        for before, after, dtype in self._sums[num_made:]:
            self._group.all_reduce(
                torch.zeros((*before, num_tokens, *after), dtype=dtype, device=self._device)
            )


def _learn(made: list[tuple[torch.Size, torch.dtype]], num_tokens: int) -> list[_Sum] | None:
    """The sums of a pass over so many tokens; None if a shape has that number for another reason, or not at all."""
    if num_tokens == 1 or not all(num_tokens in shape for shape, _dtype in made):
        return None
    places = [shape.index(num_tokens) for shape, _dtype in made]
    return [
        _Sum(tuple(shape[:place]), tuple(shape[place + 1 :]), dtype)
        for (shape, dtype), place in zip(made, places, strict=True)
    ]
