"""The experts of a layer whose matrices a call has, where other ranks have the others."""

from typing import NamedTuple


class ExpertPart(NamedTuple):
    """The experts from `first` on, of `total`. A choice of any other adds nothing, and nothing is computed for it."""

    first: int
    total: int

    def holds(self, num_experts: int) -> bool:
        """Whether so many experts from the first on are among all."""
        return self.first >= 0 and 0 <= num_experts <= self.total - self.first
