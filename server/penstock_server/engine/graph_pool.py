"""Captured graphs of a shard, in one pool of memory.

They run one after another, so each may use memory that others use: what a graph is to keep for the host or for the next
step, it copies into a tensor from outside of the pool. The largest should be captured first: others then fit into its
memory.
"""

from collections.abc import Callable
from typing import Any

import torch

Replay = Callable[[], None]


class GraphPool:
    """Captures what a step computes, on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def capture(self, compute: Replay) -> Replay:
        """Launches all that `compute` launches, by one call."""
        # Computed once before: what the first call compiles or allocates must not be part of a graph.
        compute()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        pool: Any = self._graphs[0].pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            compute()
        self._graphs.append(graph)
        return graph.replay

    def close(self) -> None:
        """Destroy the graphs."""
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
