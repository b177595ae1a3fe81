"""One measured figure: its name and value, the floor that it must reach, and the text of both."""

from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any


@dataclass(frozen=True)
class Figure:
    """A number, None where nobody could measure it yet; `at_most` or `at_least` is its floor, if it has one."""

    name: str
    value: float | None
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def floor(self) -> str:
        if self.at_most is not None:
            return f"at most {self._written(self.at_most)}"
        return f"at least {self._written(self.at_least)}" if self.at_least is not None else ""

    @property
    def verdict(self) -> str:
        if self.value is None or (self.at_most is None and self.at_least is None):
            return ""
        return "met" if self.is_met() else "**missed**"

    def is_met(self, slack: float = 1.0) -> bool:
        """Whether its floor is reached; a value up to `slack` times worse is accepted."""
        if self.value is None:
            return True
        return (self.at_most is None or self.value <= self.at_most * slack) and (
            self.at_least is None or self.value >= self.at_least / slack
        )

    @property
    def written(self) -> str:
        return "unmeasured" if self.value is None else self._written(self.value)

    def _written(self, value: float) -> str:
        return (
            f"{value:.3g} {self.unit}".strip() if abs(value) < 1000 else f"{value:,.0f} {self.unit}".strip()
        )

    def json(self) -> dict[str, Any]:
        return asdict(self)


def percentile(values: list[float], share: int) -> float:
    """The `share`-th percentile, interpolated."""
    return quantiles(values, n=100, method="inclusive")[share - 1]
