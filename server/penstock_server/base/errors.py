"""The errors, as a small tree. gRPC statuses are chosen in `interceptor`, exit codes below."""

from enum import Enum

# Exit codes: something cannot be read, loaded or computed; what a flag asks for cannot be had.
FAILED, WRONG_USAGE = 1, 2


class ErrorCode(Enum):
    """Why a slot got no token."""

    INVALID = "invalid"
    NOT_FINITE = "not_finite"
    GRAMMAR = "grammar"
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL = "kernel"


class PenstockError(Exception):
    """Everything this package raises on purpose."""


class StartError(PenstockError):
    """The shard cannot start as asked, and the user can change that. One line: what, where, what to do.

    One that is about the value of a flag begins with the flag.
    """

    @property
    def exit_code(self) -> int:
        """The exit code of the process that ends with this error: the launcher's is the same."""
        return WRONG_USAGE if str(self).startswith("--") else FAILED


class InvalidPlan(PenstockError):
    """A plan is invalid as a whole, not for one slot only: the stream ends, the shard continues."""


class StaleEpoch(PenstockError):
    """The stream belongs to a router that has been replaced."""


class SlotRefused(PenstockError):
    """A plan's request for one slot is invalid; the other slots of the plan are not affected."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID) -> None:
        super().__init__(message)
        self.code = code


# A message that is longer has a name from a folder in it that nobody wants to read.
_MAX_MESSAGE_LEN = 2000


class FolderRefused(PenstockError):
    """A folder cannot be used with this model. One line: the file, the tensor or key, and why.

    Names come from the folder, and may be of any length and of characters that no message can have.
    """

    def __init__(self, message: str) -> None:
        shown = message if len(message) <= _MAX_MESSAGE_LEN else f"{message[:_MAX_MESSAGE_LEN]} …"
        super().__init__("".join(it if it.isprintable() else repr(it)[1:-1] for it in shown))


class AdapterRefused(FolderRefused):
    """The folder of an adapter."""


class WeightsRefused(FolderRefused):
    """The folder of weights that were to take the place of those in use."""


class WeightsKept(FolderRefused):
    """Other weights could not be read after all: those from before are in use again."""


class WeightsNotReceived(PenstockError):
    """A trainer's tensors have not come, or there is no room for them: the shard is no longer in its group."""


class AdapterInUse(PenstockError):
    """An adapter cannot be unloaded while a slot uses it."""


class CallRefused(PenstockError):
    """A call asks for something that does not exist."""


class TransferFailed(PenstockError):
    """Blocks of the cache did not come from the shard of another replica: their positions have to be computed."""


class ShardAsleep(PenstockError):
    """Nothing can be computed: the shard was sent to sleep, and cannot wake up if the message says why."""


class StepFailed(PenstockError):
    """A step failed on a rank, and all ranks know it: its requests fail for this reason, the group continues."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(_STEP_FAILURES[code])
        self.code = code


_STEP_FAILURES = {
    ErrorCode.OUT_OF_MEMORY: "no memory for this step",
    ErrorCode.KERNEL: "a kernel that this step needs cannot be compiled or launched on this device; "
    "the log of the shard has the reason",
}


class ShardFailed(PenstockError):
    """The shard cannot continue: a step failed half-way, or another rank is gone. The process ends."""
