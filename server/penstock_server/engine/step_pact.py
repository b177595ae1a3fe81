"""When a step fails for lack of memory, or by a kernel that does not compile, its requests fail and the shard goes on,
on all ranks alike.

If a rank fails in the middle of a forward pass, the others would wait for ever in sums that it never reaches. So it
takes part in the remaining collectives with zeros; then all ranks of its stage compare, before any result is used. That
is one exchange of a number over gloo after the pass and one after sampling, in steps that compute prompts only. Each
stage hands on to the next what went wrong so far, and the last one tells it with what it found. A step of
decodes needs little memory, and the same that all before it needed; and a kernel that it cannot launch, no rank can:
kernels, types and sizes are the same on all that have the same layers.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from penstock_kernels.base.kernel_errors import is_kernel_error

from penstock_server.base.errors import ErrorCode, StepFailed
from penstock_server.engine.stages import REASONS
from penstock_server.network.distributed import Group, Made
from penstock_server.network.forward_input import ForwardInput
from penstock_server.network.out_of_memory import is_out_of_memory
from penstock_server.network.stage import WHOLE, Stage

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class _Call(NamedTuple):
    """A collective of a forward pass, and the shape of what ranks bring: one size of it is the number of tokens, or of
    those whose hidden states are read."""

    make: Callable[[torch.Tensor], torch.Tensor]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dtype: torch.dtype
    is_of_read: bool = False


class _Rows(NamedTuple):
    """How many tokens a pass has, and how many of them are read."""

    num_tokens: int
    num_read: int

    @property
    def are_few(self) -> bool:
        """Whether only some of the tokens are read."""
        return self.num_read < self.num_tokens


@dataclass(slots=True)
class _Known:
    """What is known of passes: their collectives, and whether these say which are over the rows that are read."""

    calls: list[_Call] | None = None
    has_read: bool = False


def reason_of(error: Exception) -> ErrorCode | None:
    """Why this error fails the requests of a step and nothing else; None if it is no such error."""
    if is_kernel_error(error):
        return ErrorCode.KERNEL
    return ErrorCode.OUT_OF_MEMORY if is_out_of_memory(error) else None


def report(error: Exception) -> None:
    """Log why the requests of a step fail: they are told less."""
    logger.error("a step failed, and its requests with it: %s", error)


class StepFailures:
    """Which errors fail the requests of a step, and nothing else.

    A single rank can continue after any lack of memory; several only after one that all know of. What Triton cannot
    compile or launch, it cannot on any rank of a stage; another stage has other layers.
    """

    def __init__(self, group: Group, stage: Stage) -> None:
        self._is_alone = group.size == 1
        self._is_whole = stage.count == 1

    def of(self, error: Exception) -> StepFailed | None:
        """The error that the requests are told; None if the shard cannot continue."""
        if isinstance(error, StepFailed):
            return error
        reason = reason_of(error)
        are_alike = self._is_alone or (reason is ErrorCode.KERNEL and self._is_whole)
        if reason is None or not are_alike:
            return None
        report(error)
        return StepFailed(reason)


class StepPact:
    """Lets all ranks know whether a step succeeded on each.

    The first pass shows which sums a pass makes, and the first one of whose rows few are read, which of them are over
    these rows. Passes that leave hidden states make other sums.
    """

    def __init__(
        self,
        group: Group,
        device: torch.device,
        report: Callable[[Exception], None],
        stage: Stage = WHOLE,
    ) -> None:
        """`group`: the ranks that compare, those of this stage. `report` is given every error that the pact keeps from
        ending the shard."""
        self._group = group
        self._stage = stage
        self._in_pass = stage.in_pass or (group,)
        self._device = device
        self._report = report
        # By whether passes leave hidden states.
        self._known = {False: _Known(), True: _Known()}

    def run_pass(self, compute: Callable[[], torch.Tensor], inputs: ForwardInput) -> torch.Tensor:
        """The hidden states of a pass over `inputs`; raises StepFailed on all ranks if it failed on one."""
        num_tokens = len(inputs.token_ids)
        rows = _Rows(num_tokens, num_tokens if inputs.read is None else len(inputs.read.rows))
        known = self._known[inputs.taps is not None]
        is_known = known.calls is not None and (known.has_read or not rows.are_few)
        made: list[Made] = []
        self._record(made)
        hidden, reason = self._try(compute, may_fail=is_known)
        self._record(None)
        # After the handler: while the error exists, it keeps what the pass had allocated.
        if hidden is None:
            self._take_part(known, len(made), rows)
        elif not is_known:
            known.calls, known.has_read = _learn(made, rows), rows.are_few
        return _held(hidden, self._through_stages(self._worst(reason)))

    def run(self, compute: Callable[[], Result]) -> Result:
        """The result of what needs no other rank; raises StepFailed on all ranks if it failed on one."""
        result, reason = self._try(compute, may_fail=True)
        return _held(result, self._worst(reason))

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

    def _worst(self, reason: ErrorCode | None) -> int:
        """The number of the reason of all ranks of the stage."""
        return max(number for (number,) in self._group.gather_numbers(REASONS.index(reason)))

    def _through_stages(self, worst: int) -> int:
        """The worst reason of this stage and those before it; the next one is told it."""
        if self._stage.before is not None:
            worst = max(worst, *self._stage.before.take())
        if self._stage.behind is not None:
            self._stage.behind.put(worst)
        return worst

    def _take_part(self, known: _Known, num_made: int, rows: _Rows) -> None:
        """Take part in the collectives that this rank did not reach."""
        assert known.calls is not None, "without them the error was raised"
        for make, before, after, dtype, is_of_read in known.calls[num_made:]:
            number = rows.num_read if is_of_read else rows.num_tokens
            make(torch.zeros((*before, number, *after), dtype=dtype, device=self._device))


def _held(result: Result | None, worst: int) -> Result:
    reason = REASONS[worst]
    if reason is not None:
        raise StepFailed(reason)
    assert result is not None, "there is a result or a reason"
    return result


def _learn(made: list[Made], rows: _Rows) -> list[_Call] | None:
    """The calls of a pass; None if a shape has none of these numbers, or may have one for another reason."""
    calls = [_call(each, rows) for each in made]
    known = [call for call in calls if call is not None]
    return known if rows.num_tokens > 1 and len(known) == len(calls) else None


def _call(made: Made, rows: _Rows) -> _Call | None:
    make, shape, dtype = made
    # Only passes in which the rows come first leave rows that are not read.
    if rows.are_few and shape[0] == rows.num_read:
        return _Call(make, (), tuple(shape[1:]), dtype, is_of_read=True)
    if rows.num_tokens not in shape:
        return None
    place = shape.index(rows.num_tokens)
    return _Call(make, tuple(shape[:place]), tuple(shape[place + 1 :]), dtype)
