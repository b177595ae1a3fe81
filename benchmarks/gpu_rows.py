"""Measurements on a GPU: the rows that `gpu_engine` measures and `gpu_report` writes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """The best rates of this device: bytes per second of a copy, flop per second of a matrix product."""

    copy: float
    product: float


@dataclass(frozen=True)
class Row:
    """One measurement; times in microseconds."""

    model: str
    what: str
    microseconds: float
    floor_microseconds: float
    tokens_per_second: float
    # Share of a step's time in which the device computed nothing.
    idle: float | None = None

    @property
    def share(self) -> float:
        return self.floor_microseconds / self.microseconds


@dataclass(frozen=True)
class Served:
    """Latencies that clients of the whole server measured; medians, in milliseconds."""

    model: str
    load: str
    tokens_per_second: float
    first_token_ms: float
    between_tokens_ms: float
