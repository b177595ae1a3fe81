"""When a step fails for lack of memory, or by a kernel that does not compile, its requests fail and the shard goes on,
on all ranks alike.

If a rank fails in the middle of a forward pass, the others would wait for ever in sums that it never reaches. So it
takes part in the remaining collectives with zeros; then all ranks compare, before any result is used. That is one
exchange of a number over gloo after the pass and one after sampling, in steps that compute prompts only. A step of
decodes needs little memory, and the same that all before it needed; and a kernel that it cannot launch, no rank can:
kernels, types and sizes are the same on all that have the same layers.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from penstock_kernels.base.kernel_errors import is_kernel_error

from penstock_server.base.errors import ErrorCode, StepFailed
from penstock_server.network.distributed import Group, Made
from penstock_server.network.out_of_memory import is_out_of_memory

Result = TypeVar("Result")

# What ranks tell each other: the number of the reason, 0 for none. Where ranks differ, the greatest counts.
_REASONS = (None, ErrorCode.OUT_OF_MEMORY, ErrorCode.KERNEL)


class _Call(NamedTuple):
    """A collective of a forward pass, and the shape of what ranks bring: one size of it is the number of tokens."""

    make: Callable[[torch.Tensor], torch.Tensor]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: torch.dtype


def reason_of(error: Exception) -> ErrorCode | None:
    """Why this error fails the requests of a step and nothing else; None if it is no such error."""
    if is_kernel_error(error):
        return ErrorCode.KERNEL
    return ErrorCode.OUT_OF_MEMORY if is_out_of_memory(error) else None


class StepPact:
    """Lets all ranks know whether a step succeeded on each. The first pass shows which sums a pass makes."""

    def __init__(
        self,
        group: Group,
        device: torch.device,
        report: Callable[[Exception], None],
        in_pass: Sequence[Group] = (),
    ) -> None:
        """`report` is given every error that the pact keeps from ending the shard. `in_pass`: the groups that take part
        in a pass; without them, it is the one whose ranks compare."""
        self._group = group
        self._in_pass = in_pass or (group,)
        self._device = device
        self._report = report
        self._calls: list[_Call] | None = None

    def run_pass(self, compute: Callable[[], torch.Tensor], num_tokens: int) -> torch.Tensor:
        """The hidden states of a pass over `num_tokens`; raises StepFailed on all ranks if it failed on one."""
        made: list[Made] = []
        self._record(made)
        hidden, reason = self._try(compute, may_fail=self._calls is not None)
        self._record(None)
        # After the handler: while the error exists, it keeps what the pass had allocated.
        if hidden is None:
            self._take_part(len(made), num_tokens)
        elif self._calls is None:
            self._calls = _learn(made, num_tokens)
        return self._compared(hidden, reason)

    def run(self, compute: Callable[[], Result]) -> Result:
        """The result of what needs no other rank; raises StepFailed on all ranks if it failed on one."""
        return self._compared(*self._try(compute, may_fail=True))

    def _record(self, made: list[Made] | None) -> None:
        for group in self._in_pass:
            group.made = made

    def _try(self, compute: Callable[[], Result], may_fail: bool) -> tuple[Result | None, ErrorCode | None]:
        try:
            return compute(), None
        except Exception as error:
            reason = reason_of(error)
            if reason is None or not may_fail:
                raise
            self._report(error)
            return None, reason

    def _compared(self, result: Result | None, reason: ErrorCode | None) -> Result:
        everyone = self._group.gather_numbers(_REASONS.index(reason))
        worst = _REASONS[max(number for (number,) in everyone)]
        if worst is not None:
            raise StepFailed(worst)
        assert result is not None, "there is a result or a reason"
        return result

    def _take_part(self, num_made: int, num_tokens: int) -> None:
        """Take part in the collectives that this rank did not reach."""
        assert self._calls is not None, "without them the error was raised"
        for make, before, after, dtype in self._calls[num_made:]:
            make(torch.zeros((*before, num_tokens, *after), dtype=dtype, device=self._device))


def _learn(made: list[Made], num_tokens: int) -> list[_Call] | None:
    """Those of a pass over so many tokens; None if a shape has that number for another reason, or not at all."""
    if num_tokens == 1 or not all(num_tokens in shape for _make, shape, _dtype in made):
        return None
    places = [shape.index(num_tokens) for _make, shape, _dtype in made]
    return [
        _Call(make, tuple(shape[:place]), tuple(shape[place + 1 :]), dtype)
        for (make, shape, dtype), place in zip(made, places, strict=True)
    ]
