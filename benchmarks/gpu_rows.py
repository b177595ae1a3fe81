"""What is measured on a GPU: the rows that `gpu_engine` measures and `gpu_report` writes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """What this device does at best: bytes per second of a copy, flop per second of a product."""

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
    # Of the time of a step, the part in which the device computed nothing.
    idle: float | None = None

    @property
    def share(self) -> float:
        return self.floor_microseconds / self.microseconds


@dataclass(frozen=True)
class Served:
    """What clients saw of the whole server; medians, in milliseconds."""

    model: str
    load: str
    tokens_per_second: float
    first_token_ms: float
    between_tokens_ms: float
