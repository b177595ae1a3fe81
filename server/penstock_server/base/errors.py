"""What can go wrong, as a small tree. gRPC statuses are chosen in `interceptor`, exit codes in `cli`."""

from enum import Enum


class ErrorCode(Enum):
    """Why a slot got no token."""

    INVALID = "invalid"
    NOT_FINITE = "not_finite"
    GRAMMAR = "grammar"
    OUT_OF_MEMORY = "out_of_memory"


class PenstockError(Exception):
    """Everything this package raises on purpose."""


class StartError(PenstockError):
    """The shard cannot start as asked, and the user can change that. One line: what, where, what to do."""


class InvalidPlan(PenstockError):
    """A plan as a whole makes no sense (not one slot of it): the stream ends, the shard goes on."""


class StaleEpoch(PenstockError):
    """The stream belongs to a router that has been replaced."""


class SlotRefused(PenstockError):
    """What a plan says of one slot is refused; its neighbours are unharmed."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID) -> None:
        super().__init__(message)
        self.code = code


class StepOutOfMemory(PenstockError):
    """A step had no memory on some rank, and all ranks know: its requests fail, the group goes on."""


class ShardFailed(PenstockError):
    """The shard cannot go on: a step broke half-way, or another rank is gone. The process ends."""
