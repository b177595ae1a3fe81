"""The collectives of a rank whose fellow brings what it brings itself: a group of two in one thread."""

from datetime import timedelta

import torch


class LoneDist:
    """The part of torch.distributed that a `Group` uses, and what it was asked for."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def all_reduce(self, x: torch.Tensor) -> None:
        self.events.append("sum")

    def all_gather(self, parts: list[torch.Tensor], x: torch.Tensor) -> None:
        for part in parts:
            part.copy_(x)

    @property
    def distributed_c10d(self) -> "LoneDist":
        return self

    def _set_pg_timeout(self, timeout: timedelta) -> None:
        self.events.append(f"timeout {timeout.total_seconds():g}")

    def destroy_process_group(self) -> None:
        self.events.append("left")
