"""How layers are placed: the group they are divided among, their dtype, and whether rows are padded."""

from dataclasses import dataclass

import torch

from penstock_server.distributed import Group

# Rows of a matrix product are padded to a multiple of this for batch invariance: in float32 BLAS takes other kernels,
# and other sums, for fewer than four. Measured on an AVX-512 core, 1024 x 4096: one row 0.38 ms, padded to eight 1.9;
# hence a flag and not a habit. Small models (256 x 768 and less) lose under 10%.
INVARIANT_ROWS = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """What every layer of a model shares."""

    group: Group
    dtype: torch.dtype
    batch_invariant: bool = False

    def empty(self, *shape: int) -> torch.Tensor:
        """A parameter of this shape, to be filled later."""
        return torch.empty(shape, dtype=self.dtype)
