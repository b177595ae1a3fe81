"""How layers are placed: the group they are divided among, which of them are here, their dtype, and whether a row may
depend on its batch.
"""

from dataclasses import dataclass

import torch

from penstock_server.network.distributed import Group
from penstock_server.network.stage import WHOLE, Stage


@dataclass(frozen=True, slots=True)
class Placement:
    """The settings that all layers of a model share."""

    group: Group
    dtype: torch.dtype
    batch_invariant: bool = False
    # Whether each rank has whole experts, not a slice of every expert.
    expert_parallel: bool = False
    stage: Stage = WHOLE

    def empty(self, *shape: int) -> torch.Tensor:
        """A parameter of this shape, to be filled later."""
        return torch.empty(shape, dtype=self.dtype)
