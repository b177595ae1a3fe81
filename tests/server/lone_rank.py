"""The collectives of a rank whose fellow brings what it brings itself: a group of two in one thread."""

import torch
from penstock_server.network.distributed import Connections


class LoneRank:
    """Stands in for both connections of a `Group`, and knows what it was asked for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def connections(self) -> Connections:
        """For the host and for the device."""
        return Connections(self, self)

    def all_reduce(self, x: torch.Tensor) -> None:
        self.events.append("sum")

    def all_gather(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x.clone(), x.clone()]

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        return x.clone()

    def set_timeout(self, timeout_s: float) -> None:
        self.events.append(f"timeout {timeout_s:g}")

    def leave(self) -> None:
        self.events.append("left")
