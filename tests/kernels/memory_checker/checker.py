"""The state that outlives a launch: the order in which programs run, and the memory that several of them may touch."""

from typing import Any

import numpy as np
import torch
from kernels.memory_checker.arguments import Argument
from kernels.memory_checker.launch import Launch


class MemoryChecker:
    """Checks one launch after the other; the interpreter runs them one at a time."""

    def __init__(self) -> None:
        self.restart(0)
        self.launch = Launch("none", {}, self._rng, [])

    def restart(self, seed: int) -> None:
        """Shuffle the programs of all launches from here on by this seed, and exempt nothing."""
        self._rng = np.random.default_rng(seed)
        self._exempt: list[Argument] = []
        self._reachable: list[torch.Tensor] = []

    def exempt_from_races(self, tensor: torch.Tensor) -> None:
        """Several programs may touch this: what is written there is never read. A contiguous tensor."""
        assert tensor.is_contiguous()
        self._exempt.append(Argument.of("exempt", tensor))

    def reach(self, tensor: torch.Tensor) -> None:
        """Kernels may find the address of this in an argument: it counts as an argument of every launch."""
        self._reachable.append(tensor)

    def begin(self, kernel: str, given: dict[str, Any]) -> None:
        """A launch begins."""
        given = {**given, "reachable": tuple(self._reachable)}
        self.launch = Launch(kernel, given, self._rng, self._exempt)
