"""Which gRPC code an error of ours has; what has none is INTERNAL."""

from enum import IntEnum

from penstock_server.base.errors import (
    AdapterInUse,
    AdapterRefused,
    CallRefused,
    InvalidPlan,
    PenstockError,
    ShardAsleep,
    ShardFailed,
    StaleEpoch,
    TransferFailed,
    WeightsKept,
    WeightsNotReceived,
    WeightsRefused,
)


class Code(IntEnum):
    """Numbers of gRPC codes."""

    INVALID_ARGUMENT = 3
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14


_CODES: dict[type[PenstockError], Code] = {
    AdapterInUse: Code.FAILED_PRECONDITION,
    AdapterRefused: Code.INVALID_ARGUMENT,
    CallRefused: Code.INVALID_ARGUMENT,
    InvalidPlan: Code.INVALID_ARGUMENT,
    ShardAsleep: Code.FAILED_PRECONDITION,
    StaleEpoch: Code.ABORTED,
    ShardFailed: Code.UNAVAILABLE,
    TransferFailed: Code.FAILED_PRECONDITION,
    WeightsKept: Code.FAILED_PRECONDITION,
    WeightsNotReceived: Code.FAILED_PRECONDITION,
    WeightsRefused: Code.INVALID_ARGUMENT,
}


def code_of(error: PenstockError) -> Code:
    """The code that a client gets."""
    return _CODES.get(type(error), Code.INTERNAL)
